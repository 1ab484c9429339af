//! What clients are told of an execution: one JSON object a line, in ASCII,
//! and how much of it. What goes beyond a bound is cut, and that it was is
//! said, with how much.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::ascii::{push_json, push_text};
use super::clock;
use super::message::{Bundle, Counted, Kind, Message, Output, Raised};

/// Most that one execution may print.
pub(super) const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most that the results of one execution may have, together.
pub(super) const RESULTS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// MIME types that have a field of their own.
const FIELDS: [(&str, &str); 12] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
    ("e2b/data", "data"),
    ("e2b/chart", "chart"),
];

/// How often lists and objects may be within each other.
const DEPTH_MAX: usize = 100;

/// Longest escape within a JSON string, twice: half a surrogate pair goes too.
const ESCAPE_BYTES_MAX: usize = 12;

/// How the content of a `stream` message ends, after its text.
const STREAM_END: &[u8] = b"\"}";

/// What was told of one execution.
#[derive(Debug, Default)]
pub(super) struct Told {
    printed: usize,
    shown: usize,
    /// Output beyond the bound.
    cut: u64,
}

/// A synthetic error: something that did not come from the code.
pub(super) fn error(name: &str, value: &str) -> Bytes {
    let mut line = r#"{"type":"error","name":"#.to_owned();
    push_text(&mut line, name);
    line.push_str(r#","value":"#);
    push_text(&mut line, value);
    line.push_str(r#","traceback":"#);
    push_text(&mut line, &format!("{name}: {value}"));
    finish(line)
}

/// A sign of life.
pub(super) fn keepalive() -> Bytes {
    Bytes::from_static(b"{\"type\":\"keepalive\"}\n")
}

/// The last line.
pub(super) fn end() -> Bytes {
    Bytes::from_static(b"{\"type\":\"end_of_execution\"}\n")
}

/// A line of ours among what the code printed.
pub(super) fn note(text: &str) -> Bytes {
    let mut quoted = String::new();
    push_text(&mut quoted, text);
    output("stderr", &quoted)
}

impl Told {
    /// What a message of the kernel is to clients. Messages that are not
    /// what they say they are, are nothing.
    pub(super) fn lines(&mut self, message: &Message) -> Vec<Bytes> {
        let told = match message.kind {
            Kind::ExecuteInput => self.counted(message),
            Kind::Stream => return self.printed(message).unwrap_or_default(),
            Kind::ExecuteResult => self.result(message, "true"),
            Kind::DisplayData => self.result(message, "false"),
            Kind::Error => raised(message),
            Kind::ExecuteReply | Kind::Status | Kind::KernelInfoReply | Kind::Other => None,
        };
        told.into_iter().collect()
    }

    /// What has to be said at the end.
    pub(super) fn last_words(&self) -> Option<Bytes> {
        (self.cut > 0).then(|| {
            note(&format!(
                "[{} bytes of output were cut: an execution may print {OUTPUT_BYTES_MAX}]\n",
                self.cut
            ))
        })
    }

    fn counted(&self, message: &Message) -> Option<Bytes> {
        let counted: Counted = serde_json::from_slice(&message.content).ok()?;
        let count = counted.execution_count?;
        Some(finish(format!(
            r#"{{"type":"number_of_executions","execution_count":{count}"#
        )))
    }

    fn printed(&mut self, message: &Message) -> Option<Vec<Bytes>> {
        let repaired = match message.dropped {
            0 => None,
            _ => repaired(&message.content),
        };
        let content = repaired.as_deref().unwrap_or(&message.content);
        let Ok(printed) = serde_json::from_slice::<Output<'_>>(content) else {
            self.cut = self.cut.saturating_add(message.dropped);
            return None;
        };
        let name = match printed.name.as_ref() {
            "stderr" => "stderr",
            _ => "stdout",
        };
        let text = inner(printed.text)?;
        let room = OUTPUT_BYTES_MAX - self.printed;
        let kept = prefix(text, room);
        self.printed += kept.len();
        let was_cut = self.cut > 0;
        let cut = (text.len() - kept.len()) as u64;
        // The last bytes of a cut message are not of its text.
        let dropped = message.dropped.saturating_sub(STREAM_END.len() as u64);
        self.cut = self.cut.saturating_add(cut).saturating_add(dropped);
        let mut lines = Vec::new();
        if !kept.is_empty() {
            lines.push(output(name, &format!("\"{kept}\"")));
        }
        if self.cut > 0 && !was_cut {
            lines.push(note(&format!(
                "\n[the output is cut here: an execution may print {OUTPUT_BYTES_MAX} bytes]\n"
            )));
        }
        Some(lines)
    }

    fn result(&mut self, message: &Message, is_main: &str) -> Option<Bytes> {
        let length = message.content.len() as u64 + message.dropped;
        let room = RESULTS_BYTES_MAX - self.shown;
        if message.dropped > 0 || message.content.len() > room {
            let mut line = r#"{"type":"result","text":"#.to_owned();
            push_text(
                &mut line,
                &format!(
                    "[a result of {length} bytes was cut: it is too large to be shown]\nhint: show a part of it, or write it to a file and download that"
                ),
            );
            line.push_str(&format!(r#","is_main_result":{is_main},"extra":{{}}"#));
            return Some(finish(line));
        }
        let bundle: Bundle<'_> = serde_json::from_slice(&message.content).ok()?;
        self.shown += message.content.len();
        let mut line = r#"{"type":"result""#.to_owned();
        for (kind, field) in FIELDS {
            let Some(value) = bundle.data.get(kind) else {
                continue;
            };
            let json = value.get();
            if json == "null" || is_too_deep(json) {
                continue;
            }
            line.push_str(&format!(",\"{field}\":"));
            match field {
                "text" => match inner(value) {
                    Some(text) => {
                        line.push('"');
                        push_json(&mut line, unquoted(text));
                        line.push('"');
                    }
                    None => push_joined(&mut line, value),
                },
                "json" | "data" | "chart" => push_json(&mut line, json),
                _ => push_joined(&mut line, value),
            }
        }
        line.push_str(&format!(r#","is_main_result":{is_main},"extra":{{"#));
        let mut is_first = true;
        for (kind, value) in &bundle.data {
            if FIELDS.iter().any(|(known, _)| known == kind) || is_too_deep(value.get()) {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                line.push(',');
            }
            push_text(&mut line, kind);
            line.push(':');
            push_json(&mut line, value.get());
        }
        line.push('}');
        Some(finish(line))
    }
}

fn raised(message: &Message) -> Option<Bytes> {
    if message.dropped > 0 {
        let length = message.content.len() as u64 + message.dropped;
        return Some(error(
            "OutputCut",
            &format!(
                "the code raised an error whose text has {length} bytes, too many to be shown"
            ),
        ));
    }
    let raised: Raised<'_> = serde_json::from_slice(&message.content).ok()?;
    let mut line = r#"{"type":"error","name":"#.to_owned();
    push_string(&mut line, raised.ename);
    line.push_str(r#","value":"#);
    push_string(&mut line, raised.evalue);
    line.push_str(r#","traceback":""#);
    for (index, part) in raised.traceback.iter().enumerate() {
        if index > 0 {
            line.push_str("\\n");
        }
        push_json(&mut line, inner(part).unwrap_or_default());
    }
    line.push('"');
    Some(finish(line))
}

fn output(name: &str, quoted: &str) -> Bytes {
    let mut line = format!(r#"{{"type":"{name}","text":"#);
    push_json(&mut line, quoted);
    line.push_str(&format!(r#","timestamp":"{}""#, clock::now()));
    finish(line)
}

fn finish(mut line: String) -> Bytes {
    line.push_str("}\n");
    line.into()
}

/// Whether lists and objects are within each other so often that a client
/// could not read them. The text of such a result is still told.
fn is_too_deep(json: &str) -> bool {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

/// What is between the quotes of a JSON string.
fn inner(json: &RawValue) -> Option<&str> {
    json.get().strip_prefix('"')?.strip_suffix('"')
}

/// A string, whatever was sent in its place.
fn push_string(line: &mut String, json: &RawValue) {
    match inner(json) {
        Some(_) => push_json(line, json.get()),
        None => push_text(line, json.get()),
    }
}

/// A text that may come as a list of lines.
fn push_joined(line: &mut String, json: &RawValue) {
    match serde_json::from_str::<Vec<&RawValue>>(json.get()) {
        Ok(parts) => {
            line.push('"');
            for part in parts {
                push_json(line, inner(part).unwrap_or_default());
            }
            line.push('"');
        }
        Err(_) => push_string(line, json),
    }
}

/// A text without one pair of quotes around it.
fn unquoted(text: &str) -> &str {
    for quote in ["'", "\\\""] {
        let without = text
            .strip_prefix(quote)
            .and_then(|text| text.strip_suffix(quote));
        if let Some(without) = without {
            return without;
        }
    }
    text
}

/// The longest part of the inside of a JSON string that ends between two
/// characters and has at most `room` bytes.
fn prefix(text: &str, room: usize) -> &str {
    if text.len() <= room {
        return text;
    }
    let bytes = text.as_bytes();
    let (mut end, mut at) = (0, 0);
    while at < bytes.len() {
        let length = match (bytes[at], bytes.get(at + 1)) {
            (b'\\', Some(b'u')) => {
                let is_first_half = matches!(bytes.get(at + 2), Some(b'd' | b'D'))
                    && matches!(
                        bytes.get(at + 3),
                        Some(b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B')
                    );
                if is_first_half { 12 } else { 6 }
            }
            (b'\\', _) => 2,
            _ => text[at..].chars().next().map_or(1, char::len_utf8),
        };
        at += length;
        if at > room {
            break;
        }
        end = at;
    }
    text.get(..end).unwrap_or_default()
}

/// The content of a `stream` message that was cut, made whole: its text is
/// what is long, and comes last.
fn repaired(content: &[u8]) -> Option<Vec<u8>> {
    (0..=ESCAPE_BYTES_MAX).find_map(|cut| {
        let kept = content.get(..content.len().checked_sub(cut)?)?;
        let whole = [kept, STREAM_END].concat();
        serde_json::from_slice::<Output<'_>>(&whole).ok()?;
        Some(whole)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn message(kind: Kind, content: &str) -> Message {
        Message {
            kind,
            parent: String::new(),
            content: content.as_bytes().to_vec(),
            dropped: 0,
        }
    }

    fn said(kind: Kind, content: &str) -> Vec<Value> {
        parsed(&Told::default().lines(&message(kind, content)))
    }

    fn parsed(lines: &[Bytes]) -> Vec<Value> {
        lines
            .iter()
            .map(|line| {
                assert!(line.is_ascii() && line.ends_with(b"}\n"));
                assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
                let mut value: Value = serde_json::from_slice(line).unwrap();
                if let Some(object) = value.as_object_mut() {
                    object.remove("timestamp");
                }
                value
            })
            .collect()
    }

    #[test]
    fn results_have_the_fields_that_clients_know() {
        let content = r#"{"data": {"text/plain": "'a\u00fc'", "text/html": ["<b>", "x"],
            "application/json": {"k": [1, "ü"]}, "image/png": "aGk=", "x/y": {"z": 1},
            "text/latex": null}, "metadata": {}}"#;
        assert_eq!(
            said(Kind::ExecuteResult, content),
            [
                json!({"type": "result", "text": "aü", "html": "<b>x", "json": {"k": [1, "ü"]},
                "png": "aGk=", "is_main_result": true, "extra": {"x/y": {"z": 1}}})
            ]
        );
        assert_eq!(
            said(Kind::DisplayData, r#"{"data":{"text/latex":"$x$"}}"#),
            [json!({"type": "result", "latex": "$x$", "is_main_result": false, "extra": {}})]
        );
    }

    #[test]
    fn what_no_client_could_read_is_left_out() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let shown = |json: &str| {
            let content = format!(
                r#"{{"data":{{"text/plain":"t","application/json":{json},"x/y":{json}}}}}"#
            );
            let line = said(Kind::ExecuteResult, &content).remove(0);
            (
                line["text"] == "t",
                line.get("json").is_some(),
                line["extra"].get("x/y").is_some(),
            )
        };
        assert_eq!(shown(&nested(DEPTH_MAX)), (true, true, true));
        assert_eq!(shown(&nested(DEPTH_MAX + 1)), (true, false, false));
        let text = format!(r#""\"{}""#, "[".repeat(1000));
        assert_eq!(shown(&text), (true, true, true));
    }

    #[test]
    fn one_pair_of_quotes_is_taken_off() {
        for (text, expected) in [
            ("'a'", "a"),
            ("\"it's\"", "it's"),
            ("''a''", "'a'"),
            ("'a\"", "'a\""),
            ("'", "'"),
            ("''", ""),
            ("\\\"", "\\\""),
            ("2", "2"),
        ] {
            let content = json!({"data": {"text/plain": text}}).to_string();
            assert_eq!(said(Kind::ExecuteResult, &content)[0]["text"], expected);
        }
    }

    #[test]
    fn errors_and_output_pass_with_half_characters() {
        assert_eq!(
            said(Kind::Stream, r#"{"name":"stdout","text":"ü\n"}"#),
            [json!({"type": "stdout", "text": "ü\n"})]
        );
        // Python knows this text, and Rust does not.
        let lines = Told::default().lines(&message(
            Kind::Stream,
            r#"{"name":"stderr","text":"\ud83d"}"#,
        ));
        assert!(lines[0].starts_with(br#"{"type":"stderr","text":"\ud83d","timestamp":""#));
        assert_eq!(
            said(
                Kind::Error,
                r#"{"ename":"E","evalue":"v\"","traceback":["a","b ü"]}"#
            ),
            [json!({"type": "error", "name": "E", "value": "v\"", "traceback": "a\nb ü"})]
        );
    }

    #[test]
    fn what_a_liar_sends_is_nothing_or_harmless() {
        for (kind, content) in [
            (Kind::Stream, "{}"),
            (Kind::Stream, r#"{"name":"stdout","text":7}"#),
            (Kind::Stream, "\u{0}"),
            (Kind::ExecuteResult, r#"{"data":[]}"#),
            (Kind::ExecuteInput, r#"{"execution_count":"x"}"#),
            (Kind::ExecuteInput, r#"{"execution_count":-1}"#),
            (Kind::Error, "[]"),
            (Kind::Other, "{}"),
        ] {
            assert_eq!(said(kind, content), Vec::<Value>::new(), "{content}");
        }
        assert_eq!(
            said(
                Kind::Error,
                r#"{"ename":{"a":1},"evalue":[],"traceback":[7,"x"]}"#
            ),
            [json!({"type": "error", "name": "{\"a\":1}", "value": "[]", "traceback": "\nx"})]
        );
    }

    #[test]
    fn output_is_cut_once_and_counted() {
        let mut told = Told::default();
        let half = "x".repeat(OUTPUT_BYTES_MAX / 2 + 1);
        let content = json!({"name": "stdout", "text": half}).to_string();
        let print = message(Kind::Stream, &content);
        let kept = |lines: Vec<Bytes>| -> Vec<(String, usize)> {
            parsed(&lines)
                .iter()
                .map(|line| {
                    let text = line["text"].as_str().unwrap();
                    (line["type"].as_str().unwrap().to_owned(), text.len())
                })
                .collect()
        };
        let out = |length| ("stdout".to_owned(), length);
        assert_eq!(kept(told.lines(&print)), [out(half.len())]);
        assert_eq!(told.last_words(), None);
        let second = kept(told.lines(&print));
        assert_eq!(second[0], out(half.len() - 2));
        assert_eq!((second.len(), second[1].0.as_str()), (2, "stderr"));
        assert_eq!(kept(told.lines(&print)), []);
        let last = parsed(&[told.last_words().unwrap()]);
        let expected = format!("[{} bytes of output were cut", half.len() + 2);
        assert!(
            last[0]["text"].as_str().unwrap().starts_with(&expected),
            "{last:?}"
        );
    }

    #[test]
    fn a_cut_message_is_told_as_far_as_it_goes() {
        for tail in ["ab", r"a\u00", r"\ud83d\u", r"\", r"x\ud83d\ude0"] {
            let cut = Message {
                dropped: 1000,
                ..message(
                    Kind::Stream,
                    &format!(r#"{{"name": "stdout", "text": "begin{tail}"#),
                )
            };
            let mut told = Told::default();
            let lines = parsed(&told.lines(&cut));
            assert!(
                lines[0]["text"].as_str().unwrap().starts_with("begin"),
                "{tail}"
            );
            assert!(told.cut >= 998);
        }
        let cut = Message {
            dropped: 1 << 30,
            ..message(Kind::ExecuteResult, r#"{"data": {"text/plain": "xx"#)
        };
        let lines = parsed(&Told::default().lines(&cut));
        assert_eq!(lines[0]["is_main_result"], true);
        let text = lines[0]["text"].as_str().unwrap();
        assert!(
            text.starts_with("[a result of 1073741851 bytes was cut"),
            "{text}"
        );
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

        #[test]
        fn no_content_makes_it_panic_or_leave_its_line(content in "\\PC{0,80}", dropped in 0_u64..3) {
            for kind in [Kind::Stream, Kind::ExecuteResult, Kind::Error, Kind::ExecuteInput] {
                let message = Message { dropped, ..message(kind, &content) };
                parsed(&Told::default().lines(&message));
            }
        }
    }
}
