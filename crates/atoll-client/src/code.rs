//! Code that keeps its state, in a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_guest_client::{
    CodeContext, CodeError, CodeEvent, CodeResult, CodeRun, CodeToRun, GuestClient, GuestError,
    NewContext,
};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

/// How long code may run unless told otherwise, as in E2B's client for Python.
const RUN_BOUND: Duration = Duration::from_secs(300);

/// Longest time that code may be given: longer than any sandbox lives.
const RUN_BOUND_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Most bytes of output and results that [`CodeInterpreter::run`] keeps.
const EXECUTION_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What an event takes beside its text: many that are empty are many, too.
const EVENT_BYTES: usize = size_of::<CodeResult>() + size_of::<CodeEvent>();

/// How code is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodeOptions {
    /// The context that it runs in; without one, that of its language.
    pub context: Option<String>,
    /// Its language; without one, Python. Not together with a context.
    pub language: Option<String>,
    /// Variables of its environment, while it runs.
    pub envs: BTreeMap<String, String>,
    /// How long it may run; 5 minutes, when absent.
    pub timeout: Option<Duration>,
}

/// What came of running code.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Execution {
    /// What it showed, in its order; the value of its last expression is
    /// marked as such.
    pub results: Vec<CodeResult>,
    /// What it printed.
    pub logs: Logs,
    /// Why it did not come to its end.
    pub error: Option<CodeError>,
    /// How many executions there were in its context, with this one.
    pub execution_count: Option<u64>,
}

/// What code printed, piece by piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logs {
    /// To standard output.
    pub stdout: Vec<String>,
    /// To standard error.
    pub stderr: Vec<String>,
}

impl Execution {
    /// The text of the value of the last expression.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        let main = self.results.iter().find(|result| result.is_main_result);
        main.and_then(|result| result.text.as_deref())
    }

    fn take(&mut self, event: CodeEvent) {
        match event {
            CodeEvent::NumberOfExecutions { execution_count } => {
                self.execution_count = Some(execution_count);
            }
            CodeEvent::Stdout { text } => self.logs.stdout.push(text),
            CodeEvent::Stderr { text } => self.logs.stderr.push(text),
            CodeEvent::Result(result) => self.results.push(*result),
            CodeEvent::Error(error) => self.error = Some(error),
            CodeEvent::Keepalive | CodeEvent::EndOfExecution | CodeEvent::Unknown => {}
        }
    }
}

/// Why there is no [`Execution`].
#[derive(Debug, thiserror::Error)]
pub enum RunCodeError {
    /// It could not be run or followed.
    #[error(transparent)]
    Sandbox(#[from] GuestError),
    /// It ran too long, and was interrupted. What it left in its context stays.
    #[error("the code ran longer than {0:?} and was interrupted\nhint: allow more with `timeout`")]
    Timeout(Duration),
    /// It printed or showed more than is kept, and was interrupted.
    #[error("the code printed or showed more than {} MiB and was interrupted\nhint: follow it with `start` instead", EXECUTION_BYTES_MAX / 1024 / 1024)]
    TooMuch,
}

/// The code interpreter of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct CodeInterpreter<'a> {
    guest: &'a GuestClient,
}

impl<'a> CodeInterpreter<'a> {
    pub(crate) fn new(guest: &'a GuestClient) -> Self {
        Self { guest }
    }

    /// Runs code to its end and shows each event to `on_event` when it happens.
    ///
    /// # Errors
    /// When it cannot be run, runs too long or shows too much. Code that fails
    /// by itself is an [`Execution`] with an error.
    pub async fn run(
        &self,
        code: &str,
        options: &CodeOptions,
        mut on_event: impl FnMut(&CodeEvent),
    ) -> Result<Execution, RunCodeError> {
        let bound = options.timeout.unwrap_or(RUN_BOUND).min(RUN_BOUND_MAX);
        let deadline = Instant::now() + bound;
        let late = |_| RunCodeError::Timeout(bound);
        let started = self.start(code, options);
        let mut run = timeout_at(deadline, started).await.map_err(late)??;
        let (mut execution, mut kept) = (Execution::default(), 0_usize);
        while let Some(event) = timeout_at(deadline, run.next()).await.map_err(late)?? {
            kept = kept.saturating_add(size(&event) + EVENT_BYTES);
            if kept > EXECUTION_BYTES_MAX {
                return Err(RunCodeError::TooMuch);
            }
            on_event(&event);
            execution.take(event);
        }
        Ok(execution)
    }

    /// Starts code, to be followed event by event. Dropped, it is interrupted.
    ///
    /// # Errors
    /// When it cannot be run.
    pub async fn start(&self, code: &str, options: &CodeOptions) -> Result<CodeRun, GuestError> {
        let code = CodeToRun {
            text: code.to_owned(),
            context: options.context.clone(),
            language: options.language.clone(),
            envs: options.envs.clone(),
        };
        self.guest.run_code(&code).await
    }

    /// Makes a context, with a kernel that runs.
    ///
    /// # Errors
    /// `Refused { status: 500 }` when its kernel cannot be started.
    pub async fn create_context(&self, wanted: &NewContext) -> Result<CodeContext, GuestError> {
        self.guest.create_context(wanted).await
    }

    /// All contexts, the oldest first.
    ///
    /// # Errors
    /// When the sandbox cannot be asked.
    pub async fn contexts(&self) -> Result<Vec<CodeContext>, GuestError> {
        self.guest.list_contexts().await
    }

    /// Ends a context, and whatever runs in it.
    ///
    /// # Errors
    /// `Refused { status: 404 }` when there is none of that name.
    pub async fn remove_context(&self, id: &str) -> Result<(), GuestError> {
        self.guest.remove_context(id).await
    }

    /// Starts a context anew, empty.
    ///
    /// # Errors
    /// `Refused { status: 404 }` when there is none of that name.
    pub async fn restart_context(&self, id: &str) -> Result<(), GuestError> {
        self.guest.restart_context(id).await
    }
}

/// How much of an event is kept, roughly.
fn size(event: &CodeEvent) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    match event {
        CodeEvent::Stdout { text } | CodeEvent::Stderr { text } => text.len(),
        CodeEvent::Error(error) => error.name.len() + error.value.len() + error.traceback.len(),
        CodeEvent::Result(result) => {
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
            } = result.as_ref();
            let texts = [text, html, markdown, svg, png, jpeg, pdf, latex, javascript];
            let values = [json, data, chart].into_iter().flatten();
            let others = extra.iter().map(|(name, value)| name.len() + weight(value));
            texts.into_iter().map(length).sum::<usize>()
                + values.map(weight).sum::<usize>()
                + others.sum::<usize>()
        }
        CodeEvent::NumberOfExecutions { .. }
        | CodeEvent::Keepalive
        | CodeEvent::EndOfExecution
        | CodeEvent::Unknown => 0,
    }
}

/// How much a value takes, with everything in it.
fn weight(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(weight).sum(),
            Value::Object(values) => values
                .iter()
                .map(|(name, value)| size_of::<String>() + name.len() + weight(value))
                .sum(),
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_counts_with_everything_that_holds_it() {
        let result = |extra: Value| {
            CodeEvent::Result(Box::new(CodeResult {
                extra: extra.as_object().cloned().unwrap_or_default(),
                ..CodeResult::default()
            }))
        };
        assert_eq!(size(&result(json!({}))), 0);
        assert!(size(&result(json!({"a-long-name": null}))) >= 11);
        let many = json!({"x": vec![1; 1000]});
        assert!(size(&result(many)) >= 1000 * size_of::<Value>());
        assert!(EVENT_BYTES >= size_of::<CodeResult>());
    }
}
