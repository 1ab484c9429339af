//! What an execution said: piece by piece for who watches, and as a whole.

use atoll_guest_client::{CodeError, CodeResult};
use atoll_store::db::{Execution, StoredExecution};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Attempt;
use super::clipped::Clipped;

/// Bytes of each output that an answer holds.
pub(super) const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of results that an answer holds.
const RESULTS_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of each output, and of the main result, that the history holds.
const HISTORY_BYTES_MAX: usize = 32 * 1024;
/// Results that an answer holds.
const RESULTS_MAX: usize = 256;
/// Bytes of what an error says, and of where it happened. A guest may say more.
const ERROR_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the name of an error.
const ERROR_NAME_BYTES_MAX: usize = 1024;
/// Bytes of one execution in the history, in JSON: a byte can take six of them.
const HISTORY_ROW_BYTES_MAX: usize = 128 * 1024;
/// Bytes of each text of an execution in a list.
const BRIEF_BYTES_MAX: usize = 4 * 1024;
/// What an execution takes besides what it said.
const OVERHEAD_BYTES: usize = 2 * 1024;

/// What happens in an execution.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ExecutionEvent {
    /// It runs.
    Started {
        /// Its id.
        execution_id: String,
        /// Where.
        sandbox_id: String,
    },
    /// It printed.
    Stdout {
        /// What.
        text: String,
    },
    /// It printed to standard error.
    Stderr {
        /// What.
        text: String,
    },
    /// It showed something.
    Result(Map<String, Value>),
    /// It raised an error.
    Error(RaisedError),
    /// It is over; nothing follows.
    End(Box<EndOfExecution>),
}

/// How it ended, for who watches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EndOfExecution {
    /// Where it stands.
    pub status: String,
    /// How it ended.
    pub outcome: String,
    /// What that means.
    pub message: Option<String>,
    /// Of a command.
    pub exit_code: Option<i64>,
    /// How long it took.
    pub duration_ms: Option<i64>,
    /// What is not there any more.
    pub state_lost: Vec<String>,
}

impl ExecutionEvent {
    /// What kind of event it is.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stdout { .. } => "stdout",
            Self::Stderr { .. } => "stderr",
            Self::Result(_) => "result",
            Self::Error(_) => "error",
            Self::End(_) => "end",
        }
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        const SELF: usize = 32;
        SELF + match self {
            Self::Started { .. } | Self::End(_) => 256,
            Self::Stdout { text } | Self::Stderr { text } => text.len(),
            Self::Result(forms) => bytes_of(forms),
            Self::Error(error) => error.bytes(),
        }
    }
}

/// An error that code raised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaisedError {
    /// Name of the exception.
    pub name: String,
    /// What it says.
    pub value: String,
    /// Where it happened.
    pub traceback: String,
}

impl RaisedError {
    fn bytes(&self) -> usize {
        self.name.len() + self.value.len() + self.traceback.len()
    }
}

impl From<CodeError> for RaisedError {
    /// Cut to what is kept: a guest may send any length.
    fn from(error: CodeError) -> Self {
        let CodeError {
            mut name,
            mut value,
            mut traceback,
        } = error;
        cut(&mut name, ERROR_NAME_BYTES_MAX);
        cut(&mut value, ERROR_BYTES_MAX);
        cut(&mut traceback, ERROR_BYTES_MAX);
        Self {
            name,
            value,
            traceback,
        }
    }
}

/// What is not in a report although it was said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncated {
    /// Bytes of standard output.
    pub stdout_bytes: u64,
    /// Bytes of standard error.
    pub stderr_bytes: u64,
    /// Results.
    pub results: u64,
}

/// What an execution said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// What code showed, each in all its forms.
    pub results: Vec<Map<String, Value>>,
    /// The error that code raised.
    pub error: Option<RaisedError>,
    /// How many executions there were in its context, with this one.
    pub execution_count: Option<u64>,
    /// What the outcome means.
    pub message: Option<String>,
    /// What is not there any more.
    pub state_lost: Vec<String>,
    /// Attempts that failed before it ran.
    pub attempts: Vec<Attempt>,
    /// What is missing here.
    pub truncated: Truncated,
}

/// An execution as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionState {
    /// What the history has, or will have.
    pub execution: Execution,
    /// What it said.
    pub report: Report,
    /// Whether its sandbox is gone; not known of what was not read from the history.
    pub sandbox: Option<SandboxFate>,
}

impl ExecutionState {
    /// As it is in a list: with 4 KiB of each text.
    #[must_use]
    pub fn brief(self) -> Self {
        Self {
            report: self.report.brief(),
            ..self
        }
    }
}

/// What became of the sandbox of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxFate {
    /// Whether it is gone.
    pub is_destroyed: bool,
    /// When it ended, while that is known.
    pub ended_at_ms: Option<i64>,
}

impl From<StoredExecution> for ExecutionState {
    fn from(stored: StoredExecution) -> Self {
        let fate = SandboxFate {
            is_destroyed: stored.is_sandbox_destroyed(),
            ended_at_ms: stored.sandbox_ended_at_ms,
        };
        let report = serde_json::from_str(&stored.execution.report).unwrap_or_default();
        Self {
            execution: stored.execution,
            report,
            sandbox: Some(fate),
        }
    }
}

/// A report that grows.
#[derive(Debug)]
pub(super) struct Collected {
    stdout: Clipped,
    stderr: Clipped,
    results: Vec<Map<String, Value>>,
    results_bytes: usize,
    results_missing: u64,
    pub(super) error: Option<RaisedError>,
    pub(super) execution_count: Option<u64>,
    pub(super) message: Option<String>,
    pub(super) state_lost: Vec<String>,
    pub(super) attempts: Vec<Attempt>,
}

impl Default for Collected {
    fn default() -> Self {
        Self {
            stdout: Clipped::new(OUTPUT_BYTES_MAX),
            stderr: Clipped::new(OUTPUT_BYTES_MAX),
            results: Vec::new(),
            results_bytes: 0,
            results_missing: 0,
            error: None,
            execution_count: None,
            message: None,
            state_lost: Vec::new(),
            attempts: Vec::new(),
        }
    }
}

impl Collected {
    pub(super) fn stdout(&mut self, bytes: &[u8]) {
        self.stdout.push(bytes);
    }

    pub(super) fn stderr(&mut self, bytes: &[u8]) {
        self.stderr.push(bytes);
    }

    /// Notes results that were too large to be taken.
    pub(super) fn left_out(&mut self, results: usize) {
        self.results_missing += results as u64;
    }

    /// Keeps a result if there is room for it; whether there was.
    pub(super) fn result(&mut self, forms: Map<String, Value>) -> bool {
        let bytes = bytes_of(&forms);
        let fits = self.results_bytes.saturating_add(bytes) <= RESULTS_BYTES_MAX
            && self.results.len() < RESULTS_MAX;
        if fits {
            self.results_bytes += bytes;
            self.results.push(forms);
        } else {
            self.results_missing += 1;
        }
        fits
    }

    /// Bytes of both outputs, kept or not.
    pub(super) fn output_bytes(&self) -> (u64, u64) {
        (self.stdout.total(), self.stderr.total())
    }

    pub(super) fn report(&self) -> Report {
        Report {
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            results: self.results.clone(),
            error: self.error.clone(),
            execution_count: self.execution_count,
            message: self.message.clone(),
            state_lost: self.state_lost.clone(),
            attempts: self.attempts.clone(),
            truncated: Truncated {
                stdout_bytes: self.stdout.missing(),
                stderr_bytes: self.stderr.missing(),
                results: self.results_missing,
            },
        }
    }
}

impl Report {
    /// What of it is written down, in JSON: outputs and texts cut further, no pictures.
    pub(super) fn for_history(&self) -> String {
        let mut limit = HISTORY_BYTES_MAX;
        loop {
            // Texts and numbers always have a form in JSON.
            let kept = serde_json::to_string(&self.cut_to(limit)).unwrap_or_default();
            if kept.len() <= HISTORY_ROW_BYTES_MAX || limit == 0 {
                return kept;
            }
            limit /= 4;
        }
    }

    /// What of it is in a list.
    fn brief(&self) -> Self {
        self.cut_to(BRIEF_BYTES_MAX)
    }

    /// It with `limit` bytes of each text, and no pictures.
    fn cut_to(&self, limit: usize) -> Self {
        let mut kept = self.clone();
        let Truncated {
            stdout_bytes,
            stderr_bytes,
            results,
        } = &mut kept.truncated;
        *stdout_bytes += cut(&mut kept.stdout, limit);
        *stderr_bytes += cut(&mut kept.stderr, limit);
        let all = kept.results.len() as u64;
        kept.results.retain(|forms| forms.contains_key("text"));
        kept.results.truncate(1);
        for forms in &mut kept.results {
            forms.retain(|name, _| matches!(name.as_str(), "text" | "is_main_result"));
            if let Some(Value::String(text)) = forms.get_mut("text") {
                cut(text, limit);
            }
        }
        *results += all - kept.results.len() as u64;
        if let Some(error) = &mut kept.error {
            cut(&mut error.name, limit);
            cut(&mut error.value, limit);
            cut(&mut error.traceback, limit);
        }
        if let Some(message) = &mut kept.message {
            cut(message, limit);
        }
        kept
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let results: usize = self.results.iter().map(bytes_of).sum();
        let error = self.error.as_ref().map_or(0, RaisedError::bytes);
        OVERHEAD_BYTES + self.stdout.len() + self.stderr.len() + results + error
    }
}

/// Leaves `limit` bytes, the beginning and the end of a text; how many went.
fn cut(text: &mut String, limit: usize) -> u64 {
    let mut clipped = Clipped::new(limit);
    clipped.push(text.as_bytes());
    if clipped.missing() > 0 {
        *text = clipped.text();
    }
    clipped.missing()
}

fn bytes_of(forms: &Map<String, Value>) -> usize {
    forms
        .iter()
        .map(|(name, value)| name.len() + value_bytes(value))
        .sum()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 16,
        Value::String(text) => text.len() + 16,
        Value::Array(values) => values.iter().map(value_bytes).sum::<usize>() + 16,
        Value::Object(fields) => bytes_of(fields) + 16,
    }
}

/// A result in all the forms that it has.
pub(super) fn forms(result: CodeResult) -> Map<String, Value> {
    let mut forms = Map::new();
    forms.insert("is_main_result".to_owned(), result.is_main_result.into());
    let texts = [
        ("text", result.text),
        ("html", result.html),
        ("markdown", result.markdown),
        ("svg", result.svg),
        ("png", result.png),
        ("jpeg", result.jpeg),
        ("pdf", result.pdf),
        ("latex", result.latex),
        ("javascript", result.javascript),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            forms.insert(name.to_owned(), text.into());
        }
    }
    let values = [
        ("json", result.json),
        ("data", result.data),
        ("chart", result.chart),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            forms.insert(name.to_owned(), value);
        }
    }
    if !result.extra.is_empty() {
        forms.insert("extra".to_owned(), Value::Object(result.extra));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Map<String, Value> {
        forms(CodeResult {
            text: Some(text.to_owned()),
            png: Some("x".repeat(100)),
            is_main_result: true,
            ..CodeResult::default()
        })
    }

    #[test]
    fn the_history_keeps_texts_and_no_pictures() {
        let mut collected = Collected::default();
        collected.stdout(&vec![b'a'; HISTORY_BYTES_MAX + 10]);
        collected.result(text("2"));
        collected.result(text("3"));
        let kept: Report = serde_json::from_str(&collected.report().for_history()).unwrap();
        let expected = Truncated {
            stdout_bytes: 10,
            stderr_bytes: 0,
            results: 1,
        };
        assert_eq!(kept.truncated, expected);
        assert_eq!(
            serde_json::to_value(&kept.results).unwrap(),
            serde_json::json!([{"is_main_result": true, "text": "2"}])
        );
    }

    #[test]
    fn whatever_a_guest_says_errors_and_rows_have_a_bound() {
        let error = CodeError {
            name: "N".repeat(10 * ERROR_NAME_BYTES_MAX),
            value: "\u{1}".repeat(4 * ERROR_BYTES_MAX),
            traceback: "\u{1}".repeat(4 * ERROR_BYTES_MAX),
        };
        let mut collected = Collected::default();
        collected.stdout(&vec![1; OUTPUT_BYTES_MAX]);
        collected.stderr(&vec![1; OUTPUT_BYTES_MAX]);
        let raised = RaisedError::from(error);
        assert!(
            raised.bytes() < ERROR_NAME_BYTES_MAX + 2 * ERROR_BYTES_MAX + 200,
            "{}",
            raised.bytes()
        );
        collected.error = Some(raised);
        collected.message = Some("\u{1}".repeat(ERROR_BYTES_MAX));
        let report = collected.report();
        assert!(report.bytes() > 2 * (OUTPUT_BYTES_MAX + ERROR_BYTES_MAX));
        let row = report.for_history();
        assert!(row.len() <= HISTORY_ROW_BYTES_MAX, "{}", row.len());
        let kept: Report = serde_json::from_str(&row).unwrap();
        assert!(kept.truncated.stdout_bytes > 0 && !kept.stdout.is_empty());
        let brief = serde_json::to_string(&report.brief()).unwrap();
        assert!(brief.len() < 6 * 8 * BRIEF_BYTES_MAX, "{}", brief.len());
    }

    #[test]
    fn results_have_a_bound_and_say_how_many_are_missing() {
        let mut collected = Collected::default();
        for _ in 0..RESULTS_MAX + 5 {
            collected.result(text("1"));
        }
        let report = collected.report();
        assert_eq!(
            (report.results.len(), report.truncated.results),
            (RESULTS_MAX, 5)
        );
        let mut collected = Collected::default();
        collected.result(text(&"y".repeat(RESULTS_BYTES_MAX)));
        assert_eq!(collected.report().truncated.results, 1);
    }
}
