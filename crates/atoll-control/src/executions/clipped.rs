//! Text of any length in little room: its beginning and its end.

use std::collections::VecDeque;

/// What was said, without its middle where that is too long.
#[derive(Debug, Default)]
pub(crate) struct Clipped {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Bytes that each of both may have.
    half: usize,
    total: u64,
}

impl Clipped {
    /// Keeps at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            half: limit / 2,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        self.tail.extend(rest);
        let surplus = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..surplus);
    }

    /// All bytes that came.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Those that are not here.
    pub(crate) fn missing(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// As text, which says how much is missing where something is.
    pub(crate) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let missing = self.missing();
        if missing == 0 {
            let whole = [self.head.as_slice(), &tail].concat();
            return String::from_utf8_lossy(&whole).into_owned();
        }
        format!(
            "{}\n[… {missing} bytes left out …]\n{}",
            String::from_utf8_lossy(&self.head),
            String::from_utf8_lossy(&tail)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_are_whole_and_long_ones_keep_both_ends() {
        let mut text = Clipped::new(8);
        text.push(b"abcd");
        text.push(b"efgh");
        assert_eq!((text.text().as_str(), text.missing()), ("abcdefgh", 0));
        text.push(b"ijklmnop");
        text.push(b"q");
        assert_eq!(text.text(), "abcd\n[… 9 bytes left out …]\nnopq");
        assert_eq!((text.total(), text.missing()), (17, 9));
    }

    #[test]
    fn a_character_in_two_pieces_is_one() {
        let mut text = Clipped::new(64);
        let bytes = "ü".as_bytes();
        text.push(&bytes[..1]);
        text.push(&bytes[1..]);
        assert_eq!(text.text(), "ü");
    }
}
