//! Output that fits a context window: plain text of which, when it is long,
//! the beginning and the end are shown.

use std::collections::VecDeque;

/// Characters of one stream that are shown when there are more.
pub const HEAD_CHARS: usize = 10_000;
/// And of its end.
pub const TAIL_CHARS: usize = 6_000;
/// Bytes of one stream that are kept, to be saved where they do not fit.
pub const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of its end that are kept beyond that.
const LAST_BYTES_MAX: usize = 64 * 1024;

/// One stream of output. Takes no more memory than it says, whatever comes.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    first: Vec<u8>,
    last: VecDeque<u8>,
    total: u64,
}

impl Collected {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let room = KEPT_BYTES_MAX - self.first.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(LAST_BYTES_MAX)..];
        let surplus = (self.last.len() + rest.len()).saturating_sub(LAST_BYTES_MAX);
        self.last.drain(..surplus);
        self.last.extend(rest);
    }

    /// Bytes that came.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    fn dropped(&self) -> u64 {
        self.total - (self.first.len() + self.last.len()) as u64
    }

    /// Everything that was kept, for a file.
    pub(crate) fn into_kept(mut self) -> Vec<u8> {
        let dropped = self.dropped();
        if dropped > 0 {
            let note = format!("\n[… {dropped} bytes were not kept …]\n");
            self.first.extend_from_slice(note.as_bytes());
        }
        self.first.extend(self.last);
        self.first
    }

    /// As a model sees it; with where the rest is, if it is somewhere.
    pub(crate) fn shown(&self) -> Shown {
        let first = plain(&String::from_utf8_lossy(&self.first));
        if self.last.is_empty() {
            return cut(&first);
        }
        let last: Vec<u8> = self.last.iter().copied().collect();
        let last = plain(&String::from_utf8_lossy(&last));
        let head = begin(&first, HEAD_CHARS);
        let tail = end(&last, TAIL_CHARS);
        Shown {
            head: head.to_owned(),
            tail: tail.to_owned(),
            left_out: self.total - (head.len() + tail.len()) as u64,
        }
    }
}

/// Text that is short enough, in one or two pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    head: String,
    tail: String,
    /// About how many bytes are between the pieces.
    left_out: u64,
}

impl Shown {
    /// Whether something is missing.
    pub(crate) fn is_cut(&self) -> bool {
        self.left_out > 0
    }

    /// The text, with `rest` saying how to get what is missing.
    pub(crate) fn text(&self, rest: &str) -> String {
        if self.left_out == 0 {
            return self.head.clone();
        }
        let (head, tail, left_out) = (&self.head, &self.tail, self.left_out);
        format!("{head}\n[… {left_out} bytes left out; {rest} …]\n{tail}")
    }
}

/// Shortens a text if it has to be.
pub(crate) fn cut(text: &str) -> Shown {
    let is_short =
        text.len() <= HEAD_CHARS + TAIL_CHARS || text.chars().count() <= HEAD_CHARS + TAIL_CHARS;
    if is_short {
        return Shown {
            head: text.to_owned(),
            tail: String::new(),
            left_out: 0,
        };
    }
    let head = begin(text, HEAD_CHARS);
    let tail = end(&text[head.len()..], TAIL_CHARS);
    Shown {
        head: head.to_owned(),
        tail: tail.to_owned(),
        left_out: (text.len() - head.len() - tail.len()) as u64,
    }
}

fn begin(text: &str, chars: usize) -> &str {
    let end = text.char_indices().nth(chars);
    &text[..end.map_or(text.len(), |(index, _)| index)]
}

fn end(text: &str, chars: usize) -> &str {
    let start = text.char_indices().rev().nth(chars.saturating_sub(1));
    &text[start.map_or(0, |(index, _)| index)..]
}

/// Text without what is meant for a terminal: escape sequences, other control
/// characters, and all but the last state of a line that was drawn again and
/// again. It would cost room and mislead.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut line = 0;
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' => skip_sequence(&mut chars),
            '\r' => match chars.peek() {
                Some('\n') | None => {}
                Some(_) => out.truncate(line),
            },
            '\n' => {
                out.push(char);
                line = out.len();
            }
            '\t' => out.push(char),
            char if char.is_control() => {}
            char => out.push(char),
        }
    }
    out
}

/// What follows an escape character: `[…letter`, `]…BEL`, or one character.
fn skip_sequence(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => {
            for char in chars.by_ref() {
                if ('\u{40}'..='\u{7e}').contains(&char) {
                    break;
                }
            }
        }
        Some(']') => {
            while let Some(char) = chars.next() {
                if char == '\u{7}' {
                    break;
                }
                if char == '\u{1b}' {
                    chars.next_if_eq(&'\\');
                    break;
                }
            }
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn collected(pieces: &[&[u8]]) -> Collected {
        let mut collected = Collected::default();
        for piece in pieces {
            collected.push(piece);
        }
        collected
    }

    #[test]
    fn short_output_is_shown_as_it_is() {
        let shown = collected(&[b"one\n", b"two\n"]).shown();
        assert!(!shown.is_cut());
        assert_eq!(shown.text("nowhere"), "one\ntwo\n");
    }

    #[test]
    fn long_output_keeps_its_beginning_and_its_end_and_says_where_the_rest_is() {
        let text = format!("begin{}end", "x".repeat(100_000));
        let shown = collected(&[text.as_bytes()]).shown();
        let left_out = text.len() - HEAD_CHARS - TAIL_CHARS;
        let expected = format!(
            "begin{}\n[… {left_out} bytes left out; look in the file …]\n{}end",
            "x".repeat(HEAD_CHARS - 5),
            "x".repeat(TAIL_CHARS - 3)
        );
        assert_eq!(shown.text("look in the file"), expected);
    }

    #[test]
    fn what_never_ends_takes_no_more_than_is_kept() {
        let mut collected = Collected::default();
        let piece = vec![b'y'; 1024 * 1024];
        for _ in 0..16 {
            collected.push(&piece);
        }
        collected.push(b"the very end");
        assert_eq!(collected.total(), 16 * 1024 * 1024 + 12);
        let shown = collected.shown();
        assert!(shown.is_cut());
        assert!(shown.text("gone").ends_with("the very end"));
        let kept = collected.into_kept();
        assert!(kept.len() < KEPT_BYTES_MAX + LAST_BYTES_MAX + 100);
        assert!(kept.ends_with(b"the very end"));
    }

    #[test]
    fn what_is_meant_for_a_terminal_is_left_out() {
        let text =
            "\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}a\u{8}b\r\n 10%\r 50%\r100%\nend\u{1b}";
        assert_eq!(plain(text), "red ab\n100%\nend");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9000), 0..20)) {
            let mut collected = Collected::default();
            for piece in &pieces {
                collected.push(piece);
            }
            let text = collected.shown().text("somewhere");
            prop_assert!(text.chars().count() <= HEAD_CHARS + TAIL_CHARS + 100);
            let has_escape = text.contains('\u{1b}');
            prop_assert!(!has_escape);
            prop_assert_eq!(collected.total(), pieces.iter().map(|piece| piece.len() as u64).sum::<u64>());
        }
    }
}
