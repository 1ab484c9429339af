//! What clients are told of an execution: one JSON object a line, in ASCII,
//! and how much of it. What goes beyond a bound is cut, and that it was is
//! said, with how much.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::ascii::{push_json, push_text};
use super::clock;
use super::cut::{STREAM_END, prefix, repaired};
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

/// Most that the errors of one execution may have, together. Apart from what it
/// printed: who printed too much is still told what went wrong.
pub(super) const ERRORS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What the shortest error takes of that, with everything around it.
const ERROR_BYTES_MIN: usize = 64;

/// How often it is said that a result is too large.
const CUT_RESULTS_MAX: u64 = 100;

/// What Python raises where there is no room for one more process.
const NO_ROOM: &str = "BlockingIOError";

/// What was told of one execution.
#[derive(Debug, Default)]
pub(super) struct Told {
    printed: usize,
    shown: usize,
    raised: usize,
    /// Output beyond the bound.
    cut: u64,
    /// Results and errors beyond theirs.
    cut_results: u64,
    cut_errors: u64,
    is_counted: bool,
    has_no_room: bool,
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
            Kind::Error => self.raised(message),
            Kind::ExecuteReply | Kind::Status | Kind::KernelInfoReply | Kind::Other => None,
        };
        told.into_iter().collect()
    }

    /// What has to be said at the end.
    pub(super) fn last_words(&self) -> Option<Bytes> {
        let unsaid = self.cut_results.saturating_sub(CUT_RESULTS_MAX);
        let mut words = String::new();
        if self.cut > 0 {
            words.push_str(&format!(
                "[{} bytes of output were cut: an execution may print {OUTPUT_BYTES_MAX}]\n",
                self.cut
            ));
        }
        for (count, what) in [(unsaid, "results"), (self.cut_errors, "errors")] {
            if count > 0 {
                words.push_str(&format!("[{count} more {what} were cut]\n"));
            }
        }
        (!words.is_empty()).then(|| note(&words))
    }

    /// Whether the code could not start one more process.
    pub(super) fn has_no_room(&self) -> bool {
        self.has_no_room
    }

    fn counted(&mut self, message: &Message) -> Option<Bytes> {
        let counted: Counted = serde_json::from_slice(&message.content).ok()?;
        let count = counted.execution_count?;
        if std::mem::replace(&mut self.is_counted, true) {
            return None;
        }
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
            self.cut_results += 1;
            if self.cut_results > CUT_RESULTS_MAX {
                return None;
            }
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

    fn raised(&mut self, message: &Message) -> Option<Bytes> {
        let length = message.content.len() as u64 + message.dropped;
        let room = ERRORS_BYTES_MAX - self.raised;
        let charge = message.content.len().max(ERROR_BYTES_MIN);
        if message.dropped > 0 || charge > room {
            // The first is told, whatever it is.
            if self.raised > 0 || self.cut_errors > 0 {
                self.cut_errors += 1;
                return None;
            }
            self.raised = ERROR_BYTES_MIN;
            return Some(error(
                "OutputCut",
                &format!(
                    "the code raised an error whose text has {length} bytes, too many to be shown"
                ),
            ));
        }
        let raised: Raised<'_> = serde_json::from_slice(&message.content).ok()?;
        self.raised += charge;
        self.has_no_room |= inner(raised.ename) == Some(NO_ROOM);
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

#[cfg(test)]
mod tests;
