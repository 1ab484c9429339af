//! Texts that are longer than what may be told, cut where they stay JSON.

use super::message::Output;

/// Longest escape within a JSON string, twice: half a surrogate pair goes too.
const ESCAPE_BYTES_MAX: usize = 2 * UNIT_BYTES;

/// An escaped unit of UTF-16.
const UNIT_BYTES: usize = 6;

/// How the content of a `stream` message ends, after its text.
pub(super) const STREAM_END: &[u8] = b"\"}";

/// The longest part of the inside of a JSON string that ends between two
/// characters and has at most `room` bytes.
pub(super) fn prefix(text: &str, room: usize) -> &str {
    if text.len() <= room {
        return text;
    }
    let bytes = text.as_bytes();
    let (mut end, mut at) = (0, 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match rest {
            // Both halves, or neither. One whose other half never comes stands
            // alone.
            [b'\\', b'u', ..] if is_first_half(rest) => match rest.get(UNIT_BYTES..) {
                Some([b'\\', b'u', ..]) => 2 * UNIT_BYTES,
                Some(_) | None => UNIT_BYTES,
            },
            [b'\\', b'u', ..] => UNIT_BYTES,
            [b'\\', ..] => 2,
            _ => 1,
        };
        at += length;
        if at > room {
            break;
        }
        // Not within a character, whose bytes are counted one by one.
        if text.is_char_boundary(at) {
            end = at;
        }
    }
    text.get(..end).unwrap_or_default()
}

/// Whether these bytes begin with the first half of a surrogate pair.
fn is_first_half(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [
            b'\\',
            b'u',
            b'd' | b'D',
            b'8' | b'9' | b'a' | b'b' | b'A' | b'B',
            ..
        ]
    )
}

/// The content of a `stream` message that was cut, made whole: its text is
/// what is long, and comes last.
pub(super) fn repaired(content: &[u8]) -> Option<Vec<u8>> {
    (0..=ESCAPE_BYTES_MAX).find_map(|cut| {
        let kept = content.get(..content.len().checked_sub(cut)?)?;
        let last = kept.get(kept.len().checked_sub(6)?..)?;
        if is_first_half(last) {
            return None;
        }
        let whole = [kept, STREAM_END].concat();
        serde_json::from_slice::<Output<'_>>(&whole).ok()?;
        Some(whole)
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::sample::select;
    use serde_json::value::RawValue;

    use super::super::ascii::push_text;
    use super::*;

    #[test]
    fn half_of_a_pair_that_stands_alone_is_a_character() {
        for (text, room, expected) in [
            (r"\ud83dé", 6, r"\ud83d"),
            (r"\ud83dé", 7, r"\ud83d"),
            (r"\ud83déé", 8, r"\ud83dé"),
            (r"\ud83d", 5, ""),
            (r"\ud83d\n", 7, r"\ud83d"),
            (r"\ud83d\ude00x", 11, ""),
            (r"\ud83d\ude00x", 12, r"\ud83d\ude00"),
            (r"a\ude00b", 7, r"a\ude00"),
            (r"\ud83d\\", 7, r"\ud83d"),
            ("éé", 3, "é"),
        ] {
            assert_eq!(prefix(text, room), expected, "{text} {room}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_prefix_is_always_a_string(text in "\\PC{0,40}", room in 0_usize..60) {
            let mut json = String::new();
            push_text(&mut json, &text);
            let whole = &json[1..json.len() - 1];
            let part = prefix(whole, room);
            proptest::prop_assert!(part.len() <= room || part.len() == whole.len());
            let back: String = serde_json::from_str(&format!("\"{part}\"")).unwrap();
            proptest::prop_assert!(text.starts_with(&back));
        }

        /// As kernels write it: not in ASCII, and with halves that stand alone.
        #[test]
        fn a_prefix_of_any_string_is_one(
            pieces in vec(
                select(vec![
                    "a", "é", "😀", "\\n", "\\\\", "\\\"", "\\/", "\\u0041",
                    "\\ud83d", "\\ude00", "\\uD83D", "\\ud83d\\ude00",
                ]),
                0..20,
            ),
            room in 0_usize..80,
        ) {
            let whole = pieces.concat();
            let part = prefix(&whole, room);
            proptest::prop_assert!(part.len() <= room || part.len() == whole.len());
            proptest::prop_assert!(whole.starts_with(part));
            let json = format!("\"{part}\"");
            proptest::prop_assert!(serde_json::from_str::<&RawValue>(&json).is_ok(), "{}", part);
            // As much as fits: the next piece is longer than what is left.
            proptest::prop_assert!(part.len() == whole.len() || part.len() + 12 > room);
        }
    }
}
