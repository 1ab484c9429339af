//! The code interpreter: contexts, and code that runs in them.
//!
//! What code printed and what its results hold is passed on as it is, and is
//! hostile like every file of a sandbox. Lines have a bound, and so has
//! silence: the guest gives a sign of life every few seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_protocol::{CODE_KEEPALIVE, WARM_ROUTE, Warmth};
use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::answer::{ANSWER_BOUND, Answer, AnswerBody};
use crate::client::{GuestClient, Narrow, bad_request, full};
use crate::error::{GuestError, harmless};
use crate::pool::Outgoing;

/// Longest line of an execution: the largest result in its largest form.
const LINE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Most values in a line: each takes many times the room of its text.
const LINE_VALUES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a line for each of its values, where bounds are narrow.
const NARROW_BYTES_PER_VALUE: usize = 8;

/// How guests begin the line of a result.
const RESULT_BEGINS: &[u8] = br#"{"type":"result""#;

/// How long an execution may be silent, signs of life included.
const SILENCE_BOUND: Duration = Duration::from_secs(CODE_KEEPALIVE.as_secs() * 2 + 30);

const JSON: &str = "application/json";

/// Code to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CodeToRun {
    /// The code.
    #[serde(rename = "code")]
    pub text: String,
    /// The context that it runs in; without one, that of its language.
    #[serde(rename = "context_id", skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Its language; without one, Python. Not together with a context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Variables of its environment, while it runs.
    #[serde(rename = "env_vars")]
    pub envs: BTreeMap<String, String>,
}

/// A context: a language, a directory and what code left in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CodeContext {
    /// Its name.
    pub id: String,
    /// What it runs.
    pub language: String,
    /// Where it began.
    pub cwd: String,
}

/// A context that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NewContext {
    /// Its language; Python, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Where it begins; the user's home, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// What comes of running code, in its order.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeEvent {
    /// How many executions there were in its context, with this one.
    NumberOfExecutions {
        /// The number.
        execution_count: u64,
    },
    /// It printed.
    Stdout {
        /// What.
        text: String,
    },
    /// It printed to standard error, or the guest has something to say.
    Stderr {
        /// What.
        text: String,
    },
    /// It showed something, or its last expression has a value.
    Result(Box<CodeResult>),
    /// It raised an error, or its kernel ended: see [`CodeError::is_state_lost`].
    Error(CodeError),
    /// Nothing; somebody is there.
    Keepalive,
    /// It is through; nothing follows.
    EndOfExecution,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Something that code showed, in all forms that it has.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CodeResult {
    /// Whether it is the value of the last expression.
    pub is_main_result: bool,
    /// As text.
    pub text: Option<String>,
    /// As HTML.
    pub html: Option<String>,
    /// As Markdown.
    pub markdown: Option<String>,
    /// As SVG.
    pub svg: Option<String>,
    /// As PNG, in base64.
    pub png: Option<String>,
    /// As JPEG, in base64.
    pub jpeg: Option<String>,
    /// As PDF, in base64.
    pub pdf: Option<String>,
    /// As LaTeX.
    pub latex: Option<String>,
    /// As JSON.
    pub json: Option<Value>,
    /// As JavaScript.
    pub javascript: Option<String>,
    /// A table, by columns.
    pub data: Option<Value>,
    /// What a chart shows.
    pub chart: Option<Value>,
    /// Other forms, by MIME type.
    pub extra: Map<String, Value>,
}

/// Why code did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CodeError {
    /// Name of the exception, or of what happened to the kernel.
    pub name: String,
    /// What it says.
    pub value: String,
    /// Where it happened.
    #[serde(default)]
    pub traceback: String,
}

impl CodeError {
    /// Whether the kernel is gone, and with it everything that code left in
    /// the context.
    #[must_use]
    pub fn is_state_lost(&self) -> bool {
        matches!(
            self.name.as_str(),
            "ContextRestarting" | "UnexpectedEndOfExecution"
        )
    }
}

/// Code that runs. Dropped before its end, it is interrupted.
#[derive(Debug)]
pub struct CodeRun {
    body: AnswerBody,
    buffer: BytesMut,
    /// How much of the buffer was searched for the end of a line.
    searched: usize,
    is_over: bool,
    bounds: LineBounds,
    /// Whether the rest of a line is left out.
    is_skipping: bool,
    left_out: usize,
}

/// What a line of an execution may have.
#[derive(Debug, Clone, Copy)]
struct LineBounds {
    bytes: usize,
    values: usize,
    too_large: TooLarge,
}

/// What becomes of a result that is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TooLarge {
    Fails,
    IsLeftOut,
}

impl LineBounds {
    fn of(narrow: Option<Narrow>) -> Self {
        match narrow {
            None => Self {
                bytes: LINE_BYTES_MAX,
                values: LINE_VALUES_MAX,
                too_large: TooLarge::Fails,
            },
            Some(Narrow { line_bytes, .. }) => Self {
                bytes: line_bytes.min(LINE_BYTES_MAX),
                values: (line_bytes / NARROW_BYTES_PER_VALUE).min(LINE_VALUES_MAX),
                too_large: TooLarge::IsLeftOut,
            },
        }
    }

    /// Whether a line that begins like this may be left out. An error or the
    /// end may not: without them, an execution looks like another one.
    fn may_leave_out(self, line: &[u8]) -> bool {
        self.too_large == TooLarge::IsLeftOut && line.starts_with(RESULT_BEGINS)
    }
}

impl GuestClient {
    /// Runs code and follows it.
    ///
    /// # Errors
    /// [`GuestError::Refused`] with 404 when there is no such context, with
    /// 400 when both a context and a language are named, and with 500 when
    /// its kernel cannot be started.
    pub async fn run_code(&self, code: &CodeToRun) -> Result<CodeRun, GuestError> {
        let request = self.json(Method::POST, "/execute", Some(code))?;
        let answer = timeout(ANSWER_BOUND, self.send_alone(request.map(full)))
            .await
            .map_err(|_| GuestError::Timeout {
                what: "start to run code",
                bound: ANSWER_BOUND,
            })??;
        let answer = accepted(answer).await?.delimited()?;
        Ok(CodeRun {
            body: answer.into_body(),
            buffer: BytesMut::new(),
            searched: 0,
            is_over: false,
            bounds: LineBounds::of(self.narrow()),
            is_skipping: false,
            left_out: 0,
        })
    }

    /// Waits until the kernel that most code needs has run code, where the
    /// sandbox has one, for at most `bound`.
    ///
    /// # Errors
    /// When it does not come, and why.
    pub async fn warm(&self, bound: Duration) -> Result<Warmth, GuestError> {
        let request = self.json::<()>(Method::POST, WARM_ROUTE, None)?;
        let asking = async {
            let answer = self.send_alone(request.map(full)).await?;
            parsed(accepted(answer).await?).await
        };
        timeout(bound, asking)
            .await
            .unwrap_or(Err(GuestError::Timeout {
                what: "have a kernel ready",
                bound,
            }))
    }

    /// Makes a context, and starts its kernel.
    ///
    /// # Errors
    /// [`GuestError::Refused`] with 500 when that cannot be done.
    pub async fn create_context(&self, wanted: &NewContext) -> Result<CodeContext, GuestError> {
        let request = self.json(Method::POST, "/contexts", Some(wanted))?;
        let answer = self.ask(Outgoing::Once(request.map(full))).await?;
        parsed(accepted(answer).await?).await
    }

    /// All contexts, the oldest first.
    ///
    /// # Errors
    /// When the guest cannot be asked.
    pub async fn list_contexts(&self) -> Result<Vec<CodeContext>, GuestError> {
        let request = self.json::<()>(Method::GET, "/contexts", None)?;
        let answer = self.ask(Outgoing::Repeatable(request)).await?;
        parsed(accepted(answer).await?).await
    }

    /// Ends a context, and whatever runs in it.
    ///
    /// # Errors
    /// [`GuestError::Refused`] with 404 when there is no such context.
    pub async fn remove_context(&self, id: &str) -> Result<(), GuestError> {
        self.change_context(Method::DELETE, id, "").await
    }

    /// Starts a context anew, empty.
    ///
    /// # Errors
    /// [`GuestError::Refused`] with 404 when there is no such context.
    pub async fn restart_context(&self, id: &str) -> Result<(), GuestError> {
        self.change_context(Method::POST, id, "/restart").await
    }

    async fn change_context(
        &self,
        method: Method,
        id: &str,
        action: &str,
    ) -> Result<(), GuestError> {
        let is_id = !id.is_empty()
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_id {
            return Err(GuestError::NotForwarded("no context has such a name"));
        }
        let request = self.json::<()>(method, &format!("/contexts/{id}{action}"), None)?;
        let answer = self.ask(Outgoing::Once(request.map(full))).await?;
        accepted(answer).await?.whole_body().await?;
        Ok(())
    }

    fn json<T: Serialize>(
        &self,
        method: Method,
        target: &str,
        body: Option<&T>,
    ) -> Result<Request<Bytes>, GuestError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(bad_request)?,
            None => Vec::new(),
        };
        self.request(method, target, None, JSON, Bytes::from(body))
    }
}

/// An answer that says yes; otherwise an error, in the words of a plain text.
async fn accepted(answer: Answer) -> Result<Answer, GuestError> {
    let status = answer.response.status();
    if status == StatusCode::OK {
        return Ok(answer);
    }
    #[derive(Deserialize)]
    struct ErrorBody {
        message: String,
    }
    let body = answer.whole_body().await?;
    let message = serde_json::from_slice::<ErrorBody>(&body).map_or_else(
        |_| String::from_utf8_lossy(&body).into_owned(),
        |body| body.message,
    );
    let message = harmless(&message.replace('\n', " "));
    Err(match status {
        StatusCode::UNAUTHORIZED => GuestError::Unauthorized(message),
        status => GuestError::Refused {
            status: status.as_u16(),
            message,
        },
    })
}

async fn parsed<T: serde::de::DeserializeOwned>(answer: Answer) -> Result<T, GuestError> {
    let body = answer.whole_body().await?;
    serde_json::from_slice(&body)
        .map_err(|error| GuestError::Protocol(harmless(&error.to_string())))
}

impl CodeRun {
    /// What happens next; `None` after the end.
    ///
    /// # Errors
    /// When the guest falls silent, breaks off or says what nobody understands.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, GuestError> {
        while !self.is_over {
            let Some(line) = self.line().await? else {
                self.is_over = true;
                // An execution has a last line; without it, it was cut short.
                return Err(GuestError::Disconnected(
                    "the execution broke off".to_owned(),
                ));
            };
            let event = match event(&line, self.bounds.values) {
                Err(GuestError::TooLarge { .. }) if self.bounds.may_leave_out(&line) => {
                    self.left_out += 1;
                    continue;
                }
                event => event?,
            };
            match event {
                CodeEvent::Keepalive | CodeEvent::Unknown => {}
                CodeEvent::EndOfExecution => {
                    self.is_over = true;
                    return Ok(Some(CodeEvent::EndOfExecution));
                }
                event => return Ok(Some(event)),
            }
        }
        Ok(None)
    }

    /// How many results were too large for the narrow bounds of the client.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    async fn line(&mut self) -> Result<Option<Bytes>, GuestError> {
        loop {
            let fresh = &self.buffer[self.searched..];
            if let Some(end) = fresh.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1).freeze();
                self.searched = 0;
                if std::mem::take(&mut self.is_skipping) {
                    self.left_out += 1;
                    continue;
                }
                return Ok(Some(line.slice(..line.len() - 1)));
            }
            let is_too_long = self.buffer.len() > self.bounds.bytes;
            if is_too_long && !self.is_skipping && !self.bounds.may_leave_out(&self.buffer) {
                return Err(GuestError::TooLarge {
                    what: "a line of an execution",
                    limit: self.bounds.bytes,
                });
            }
            if is_too_long || self.is_skipping {
                self.is_skipping = true;
                self.buffer.clear();
            }
            self.searched = self.buffer.len();
            let frame = timeout(SILENCE_BOUND, self.body.frame())
                .await
                .map_err(|_| GuestError::Timeout {
                    what: "give a sign of life while it runs code",
                    bound: SILENCE_BOUND,
                })?;
            match frame {
                None if self.buffer.is_empty() && !self.is_skipping => return Ok(None),
                None => {
                    return Err(GuestError::Protocol(
                        "an execution ends within a line".to_owned(),
                    ));
                }
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

fn event(line: &[u8], values_max: usize) -> Result<CodeEvent, GuestError> {
    if values(line) > values_max {
        return Err(GuestError::TooLarge {
            what: "the number of values in a line of an execution",
            limit: values_max,
        });
    }
    serde_json::from_slice(line)
        .or_else(|_| serde_json::from_slice(&without_halves(line)))
        .map_err(|error| GuestError::Protocol(harmless(&error.to_string())))
}

/// How many values a line of JSON has at most.
fn values(line: &[u8]) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (1, false, false);
    for byte in line {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

/// A line in which halves of surrogate pairs, which Python knows as characters
/// and Rust does not, are replaced.
fn without_halves(line: &[u8]) -> Vec<u8> {
    let unit = |at: usize| -> Option<u16> {
        let digits = line.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut out = Vec::with_capacity(line.len());
    let mut at = 0;
    while at < line.len() {
        let (length, is_half) = match (line[at], unit(at)) {
            (b'\\', Some(0xd800..=0xdbff)) => match unit(at + 6) {
                Some(0xdc00..=0xdfff) => (12, false),
                _ => (6, true),
            },
            (b'\\', Some(0xdc00..=0xdfff)) => (6, true),
            (b'\\', _) => (2, false),
            _ => (1, false),
        };
        let end = (at + length).min(line.len());
        if is_half {
            out.extend_from_slice(b"\\ufffd");
        } else {
            out.extend_from_slice(&line[at..end]);
        }
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &[u8]) -> Result<CodeEvent, GuestError> {
        super::event(line, LINE_VALUES_MAX)
    }

    #[test]
    fn events_are_what_the_lines_say() {
        let parse = |line: &str| event(line.as_bytes()).unwrap();
        assert_eq!(
            parse(r#"{"type":"number_of_executions","execution_count":3}"#),
            CodeEvent::NumberOfExecutions { execution_count: 3 }
        );
        assert_eq!(
            parse(r#"{"type":"stdout","text":"a","timestamp":"t"}"#),
            CodeEvent::Stdout {
                text: "a".to_owned()
            }
        );
        assert_eq!(
            parse(r#"{"type":"result","text":"2","is_main_result":true,"extra":{}}"#),
            CodeEvent::Result(Box::new(CodeResult {
                is_main_result: true,
                text: Some("2".to_owned()),
                ..CodeResult::default()
            }))
        );
        assert_eq!(
            parse(r#"{"type":"of_the_future","x":1}"#),
            CodeEvent::Unknown
        );
        assert!(event(b"{}").is_err());
        assert!(event(b"").is_err());
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (line, expected) in [
            ("1", 1),
            ("[1,2]", 3),
            (r#"{"a":",,,[","b":"\",["}"#, 3),
            (r#""\\",1"#, 2),
        ] {
            assert_eq!(values(line.as_bytes()), expected, "{line}");
        }
        let data = |count| {
            let row = vec!["1"; count].join(",");
            event(format!(r#"{{"type":"result","data":[{row}]}}"#).as_bytes())
        };
        assert!(data(1000).is_ok());
        assert!(matches!(
            data(LINE_VALUES_MAX),
            Err(GuestError::TooLarge { .. })
        ));
    }

    #[test]
    fn half_a_character_is_replaced_and_a_whole_one_is_not() {
        for (text, expected) in [
            (r"\ud83d", "\u{fffd}"),
            (r"\ude00x", "\u{fffd}x"),
            (r"\ud83d\ude00\ud83d", "😀\u{fffd}"),
            (r"\\ud83d", r"\ud83d"),
            (r"\ud83d\n", "\u{fffd}\n"),
        ] {
            let line = format!(r#"{{"type":"stdout","text":"{text}"}}"#);
            let expected = CodeEvent::Stdout {
                text: expected.to_owned(),
            };
            assert_eq!(event(line.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = event(&line);
            let _ = without_halves(&line);
        }
    }
}
