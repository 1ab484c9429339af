//! One cell, from its code to its end, within a time and an amount of output.

use std::fmt;
use std::io;
use std::str::FromStr;

use atoll_guest_client::{CodeError, CodeEvent, CodeResult, CodeToRun, GuestClient, GuestError};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::failure::Hinted;

/// What an event costs beyond its texts, so that empty ones are not free.
const EVENT_BYTES: u64 = 64;

/// Longest name of a language or a kernel.
const LANGUAGE_BYTES_MAX: usize = 64;

/// What a cell is written in: a language, or the name of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Language(String);

impl Language {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Language {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FromStr for Language {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        let is_name = (1..=LANGUAGE_BYTES_MAX).contains(&name.len())
            && !name.starts_with('.')
            && name
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || "-_.+".contains(char));
        if !is_name {
            return Err(
                "name a language (python, javascript, typescript, bash, r, java) or a kernel"
                    .to_owned(),
            );
        }
        Ok(Self(
            match name.as_str() {
                "py" | "python3" => "python",
                "js" | "node" => "javascript",
                "ts" => "typescript",
                "sh" | "shell" => "bash",
                "ir" => "r",
                other => other,
            }
            .to_owned(),
        ))
    }
}

/// Bytes of output that are still taken.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    left: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, left: limit }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    fn takes(&mut self, event: &CodeEvent) -> bool {
        match self.left.checked_sub(weight(event)) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// How the stream of events of a cell ended.
#[derive(Debug)]
pub(crate) enum CellEnd {
    /// By itself, in success or with the error beside it.
    Over,
    /// It ran too long, and was interrupted.
    Timeout,
    /// It printed or showed too much, and was interrupted.
    TooMuchOutput,
    /// The guest is gone, or lies.
    Lost(String),
}

/// What came of a cell.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) end: CellEnd,
    pub(crate) execution_count: Option<u64>,
    pub(crate) error: Option<CodeError>,
}

impl Followed {
    /// Whether it came to its end without an error.
    pub(crate) fn is_success(&self) -> bool {
        matches!(self.end, CellEnd::Over) && self.error.is_none()
    }
}

/// Runs a cell and shows each event that is within the budget to `on_event`.
///
/// # Errors
/// When it cannot be run at all, or `on_event` fails.
pub(crate) async fn follow(
    guest: &GuestClient,
    code: &CodeToRun,
    deadline: Instant,
    budget: &mut Budget,
    on_event: &mut impl FnMut(CodeEvent) -> anyhow::Result<()>,
) -> anyhow::Result<Followed> {
    let mut followed = Followed {
        end: CellEnd::Over,
        execution_count: None,
        error: None,
    };
    let mut run = match timeout_at(deadline, guest.run_code(code)).await {
        Ok(Ok(run)) => run,
        Ok(Err(error)) => return refused(code, error, followed),
        Err(_) => {
            followed.end = CellEnd::Timeout;
            return Ok(followed);
        }
    };
    loop {
        let event = match timeout_at(deadline, run.next()).await {
            Err(_) => {
                followed.end = CellEnd::Timeout;
                break;
            }
            Ok(Err(error)) => {
                followed.end = CellEnd::Lost(error.to_string());
                break;
            }
            Ok(Ok(None | Some(CodeEvent::EndOfExecution))) => break,
            Ok(Ok(Some(event))) => event,
        };
        if !budget.takes(&event) {
            followed.end = CellEnd::TooMuchOutput;
            break;
        }
        match &event {
            CodeEvent::NumberOfExecutions { execution_count } => {
                followed.execution_count = Some(*execution_count);
            }
            CodeEvent::Error(error) => followed.error = Some(error.clone()),
            _ => {}
        }
        on_event(event)?;
    }
    Ok(followed)
}

/// What it means that a cell did not begin.
fn refused(
    code: &CodeToRun,
    error: GuestError,
    mut followed: Followed,
) -> anyhow::Result<Followed> {
    match error {
        GuestError::Refused { status, message } => {
            let language = code.language.as_deref().unwrap_or("such");
            let hint = if status == 500 {
                "`--template code-interpreter-v1-slim` has kernels for Python, JavaScript, \
                 TypeScript and Bash, `code-interpreter-v1` for R and Java as well"
            } else {
                "code has at most 8 MiB; pass data with --file SOURCE:TARGET"
            };
            let what = format!("cannot run {language} code here: {message}");
            Err(Hinted::error(what, hint))
        }
        error => {
            followed.end = CellEnd::Lost(error.to_string());
            Ok(followed)
        }
    }
}

/// About how many bytes an event holds.
fn weight(event: &CodeEvent) -> u64 {
    let held = match event {
        CodeEvent::Stdout { text } | CodeEvent::Stderr { text } => text.len() as u64,
        CodeEvent::Error(error) => {
            (error.name.len() + error.value.len() + error.traceback.len()) as u64
        }
        CodeEvent::Result(result) => result_weight(result),
        CodeEvent::NumberOfExecutions { .. }
        | CodeEvent::Keepalive
        | CodeEvent::EndOfExecution
        | CodeEvent::Unknown => 0,
    };
    EVENT_BYTES + held
}

fn result_weight(result: &CodeResult) -> u64 {
    let CodeResult {
        is_main_result: _,
        text,
        html,
        markdown,
        svg,
        png,
        jpeg,
        pdf,
        latex,
        json,
        javascript,
        data,
        chart,
        extra,
    } = result;
    let texts = [text, html, markdown, svg, png, jpeg, pdf, latex, javascript];
    let texts = texts.into_iter().flatten().map(|text| text.len() as u64);
    let values = [json, data, chart].into_iter().flatten();
    let values = values.chain(extra.values()).map(json_bytes);
    let names = extra.keys().map(|name| name.len() as u64);
    texts.chain(values).chain(names).sum()
}

/// Length of a value as JSON.
pub(super) fn json_bytes(value: &Value) -> u64 {
    struct Count(u64);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Nothing that was parsed cannot be written, and the writer never fails.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_have_one_name_each() {
        for (text, expected) in [
            ("Python", Ok("python")),
            ("py", Ok("python")),
            ("R", Ok("r")),
            ("xeus-cling.17", Ok("xeus-cling.17")),
            ("", Err(())),
            ("../python", Err(())),
            (".hidden", Err(())),
            ("a b", Err(())),
            (&"x".repeat(65), Err(())),
        ] {
            let parsed = text.parse::<Language>();
            let name = parsed.as_ref().map(Language::as_str).map_err(|_| ());
            assert_eq!(name, expected, "{text:?}");
        }
    }

    #[test]
    fn everything_that_an_event_holds_is_counted() {
        let result = CodeResult {
            text: Some("1234".to_owned()),
            png: Some("56".to_owned()),
            data: Some(serde_json::json!({"a": [1]})),
            extra: std::iter::once(("xy".to_owned(), Value::Null)).collect(),
            ..CodeResult::default()
        };
        let event = CodeEvent::Result(Box::new(result));
        assert_eq!(weight(&event), EVENT_BYTES + 4 + 2 + 9 + 2 + 4);

        let mut budget = Budget::new(2 * EVENT_BYTES + 3);
        let printed = CodeEvent::Stdout {
            text: "abc".to_owned(),
        };
        assert!(budget.takes(&printed));
        assert!(!budget.takes(&printed), "three bytes too many");
        assert!(budget.takes(&CodeEvent::Keepalive));
        assert!(!budget.takes(&CodeEvent::Keepalive), "nothing is free");
    }
}
