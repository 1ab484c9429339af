//! JSON in pure ASCII on one line: clients decode each piece of an answer by
//! itself, so a character that is cut in two is lost, and they split at lines.

use std::fmt::Write as _;

/// Appends a JSON text, in ASCII and without line breaks.
pub(super) fn push_json(out: &mut String, json: &str) {
    for char in json.chars() {
        match char {
            // Between tokens only: within strings JSON has them escaped.
            '\n' | '\r' => out.push(' '),
            char if char.is_ascii() => out.push(char),
            char => push_escaped(out, char),
        }
    }
}

/// Appends a text as a JSON string, in ASCII.
pub(super) fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            ' '..='~' => out.push(char),
            char => push_escaped(out, char),
        }
    }
    out.push('"');
}

fn push_escaped(out: &mut String, char: char) {
    for unit in char.encode_utf16(&mut [0; 2]) {
        // Writing to a `String` cannot fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_out_in_ascii_and_come_back() {
        let text = "a\"b\\c\nd\r\te\u{7f}ü\u{2028}😀\0";
        let mut out = String::new();
        push_text(&mut out, text);
        assert!(
            out.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{out}"
        );
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
    }

    proptest::proptest! {
        #[test]
        fn any_json_stays_the_same(text in "\\PC*", number in 0_i64..) {
            let value = serde_json::json!({ &text: [number, &text, null] });
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let mut out = String::new();
            push_json(&mut out, &pretty);
            proptest::prop_assert!(out.is_ascii() && !out.contains(['\n', '\r']));
            proptest::prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), value);
        }
    }
}
