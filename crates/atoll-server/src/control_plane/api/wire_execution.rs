//! Executions, as they are asked for and told.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_control::executions::{
    ExecutionState, ExecutionWish, OUTPUT_BYTES_DEFAULT, PackageManager, TIMEOUT_DEFAULT, Work,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::moment::rfc3339;
use super::problem::Problem;
use super::wire::{AttemptBody, RecoveredBody};

/// How the answer to an execution comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Mode {
    /// When it has ended. Who hangs up before ends it.
    #[default]
    Sync,
    /// At once; ask for it by its id.
    Async,
    /// As events, while it runs. Who hangs up can come back.
    Stream,
}

/// Code or a command to run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct Execute {
    /// Code for a kernel, which keeps its state. Not together with `command`.
    pub(super) code: Option<String>,
    /// Language of the code; `python` when absent.
    pub(super) language: Option<String>,
    /// The context that code runs in; that of its language when absent.
    pub(super) context_id: Option<String>,
    /// A line for a shell.
    pub(super) command: Option<String>,
    /// Where a command begins.
    pub(super) cwd: Option<String>,
    /// As whom a command runs.
    pub(super) user: Option<String>,
    /// Variables that win over the sandbox's.
    pub(super) environment: BTreeMap<String, String>,
    /// When it is ended, in milliseconds; 300000 when absent.
    pub(super) timeout_ms: Option<u64>,
    /// How much it may say before it is ended; 16 MiB when absent.
    pub(super) output_bytes: Option<u64>,
    /// How the answer comes.
    pub(super) mode: Mode,
}

impl Execute {
    pub(super) fn wish(self) -> Result<(ExecutionWish, Mode), Problem> {
        let work = match (self.code, self.command) {
            (Some(text), None) => Work::Code {
                text,
                language: self.language,
                context: self.context_id,
            },
            (None, Some(line)) => {
                if self.language.is_some() || self.context_id.is_some() {
                    let message = "'language' and 'context_id' are for code, not for commands";
                    return Err(Problem::invalid(message));
                }
                Work::Command { line }
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(Problem::invalid("send either 'code' or 'command'"));
            }
        };
        let timeout = self
            .timeout_ms
            .map_or(TIMEOUT_DEFAULT, Duration::from_millis);
        let wish = ExecutionWish {
            work,
            environment: self.environment,
            cwd: self.cwd,
            user: self.user,
            timeout: Some(timeout),
            output_bytes: self.output_bytes.unwrap_or(OUTPUT_BYTES_DEFAULT),
        };
        Ok((wish, self.mode))
    }
}

/// Who installs packages.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum ManagerName {
    /// For Python.
    Pip,
    /// For Node.
    Npm,
    /// For the system, as root.
    Apt,
}

/// Packages to install.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct InstallPackages {
    /// By whom.
    manager: ManagerName,
    /// Their names, with versions as the manager writes them.
    packages: Vec<String>,
    /// When it is ended, in milliseconds; 300000 when absent.
    #[serde(default)]
    timeout_ms: Option<u64>,
    /// How the answer comes.
    #[serde(default)]
    pub(super) mode: Mode,
}

impl InstallPackages {
    pub(super) fn wish(self) -> (ExecutionWish, Mode) {
        let manager = match self.manager {
            ManagerName::Pip => PackageManager::Pip,
            ManagerName::Npm => PackageManager::Npm,
            ManagerName::Apt => PackageManager::Apt,
        };
        let mut wish = ExecutionWish::new(Work::Packages {
            manager,
            names: self.packages,
        });
        let timeout = self
            .timeout_ms
            .map_or(TIMEOUT_DEFAULT, Duration::from_millis);
        wish.timeout = Some(timeout);
        (wish, self.mode)
    }
}

/// An error that code raised.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RaisedError")]
pub(in super::super) struct RaisedErrorBody {
    /// Name of the exception.
    name: String,
    /// What it says.
    value: String,
    /// Where it happened.
    traceback: String,
}

/// What is not in an answer although it was said.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Truncated")]
pub(in super::super) struct TruncatedBody {
    /// Bytes of standard output.
    stdout_bytes: u64,
    /// Bytes of standard error.
    stderr_bytes: u64,
    /// Results.
    results: u64,
}

/// One run of code or of a command.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Execution")]
pub(in super::super) struct ExecutionBody {
    /// Its id.
    execution_id: String,
    /// `running`, `succeeded`, `failed`, `cancelled` or `interrupted`.
    status: String,
    /// How it ended: a word of the catalogue of outcomes.
    outcome: Option<String>,
    /// What the outcome means.
    message: Option<String>,
    /// `code`, `command`, `process` or `packages`.
    kind: String,
    /// Of the code.
    language: Option<String>,
    /// Digest of the code or command, which is not kept.
    code_digest: String,
    /// Its length.
    code_bytes: i64,
    /// The agent that asked for it.
    agent_id: Option<String>,
    /// The task it is part of.
    task_id: Option<String>,
    /// The session it was asked for in.
    session_id: Option<String>,
    /// Where it ran.
    sandbox_id: String,
    /// What that was made from.
    template_id: String,
    /// How that was kept apart.
    isolation: String,
    /// Of a command; 128 and more for one that was ended by a signal.
    exit_code: Option<i64>,
    /// Standard output; its middle is left out where it is long.
    stdout: String,
    /// Standard error, likewise.
    stderr: String,
    /// Bytes of standard output, here or not.
    stdout_bytes: i64,
    /// Bytes of standard error, here or not.
    stderr_bytes: i64,
    /// What code showed, each in all its forms: `text`, `html`, `png`, `chart`, ….
    results: Vec<Map<String, Value>>,
    /// The error that code raised.
    error: Option<RaisedErrorBody>,
    /// How many executions there were in its context, with this one.
    execution_count: Option<u64>,
    /// What is not there any more.
    state_lost: Vec<String>,
    /// Attempts that failed before it ran.
    attempts: Vec<AttemptBody>,
    /// What is missing here.
    truncated: TruncatedBody,
    /// When it was asked for.
    created_at: String,
    /// When it ended.
    ended_at: Option<String>,
    /// How long it took.
    duration_ms: Option<i64>,
    /// CPU time that its sandbox used meanwhile.
    cpu_usec: Option<i64>,
    /// Most memory that its sandbox had used by then.
    memory_peak_bytes: Option<i64>,
    /// Whether its sandbox is gone; absent while that was not looked up.
    sandbox_destroyed: Option<bool>,
    /// When that was, while it is known.
    sandbox_destroyed_at: Option<String>,
    /// Why it ran in another sandbox than the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recovered: Option<RecoveredBody>,
}

impl From<ExecutionState> for ExecutionBody {
    fn from(state: ExecutionState) -> Self {
        let ExecutionState {
            execution: row,
            report,
            sandbox,
        } = state;
        Self {
            execution_id: row.execution_id.to_string(),
            status: row.status.as_str().to_owned(),
            outcome: row.outcome,
            message: report.message,
            kind: row.kind,
            language: row.language,
            code_digest: row.digest,
            code_bytes: row.code_bytes,
            agent_id: row.agent_id,
            task_id: row.task_id,
            session_id: row.session_id,
            sandbox_id: row.sandbox_id,
            template_id: row.template_id,
            isolation: row.tier,
            exit_code: row.exit_code,
            stdout: report.stdout,
            stderr: report.stderr,
            stdout_bytes: row.stdout_bytes,
            stderr_bytes: row.stderr_bytes,
            results: report.results,
            error: report.error.map(|error| RaisedErrorBody {
                name: error.name,
                value: error.value,
                traceback: error.traceback,
            }),
            execution_count: report.execution_count,
            state_lost: report.state_lost,
            attempts: report.attempts.into_iter().map(AttemptBody::from).collect(),
            truncated: TruncatedBody {
                stdout_bytes: report.truncated.stdout_bytes,
                stderr_bytes: report.truncated.stderr_bytes,
                results: report.truncated.results,
            },
            created_at: rfc3339(row.created_at_ms),
            ended_at: row.ended_at_ms.map(rfc3339),
            duration_ms: row.duration_ms,
            cpu_usec: row.cpu_usec,
            memory_peak_bytes: row.memory_peak_bytes,
            sandbox_destroyed: sandbox.map(|fate| fate.is_destroyed),
            sandbox_destroyed_at: sandbox.and_then(|fate| fate.ended_at_ms).map(rfc3339),
            recovered: None,
        }
    }
}

/// A part of the history.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct ExecutionList {
    /// The newest first.
    pub(super) executions: Vec<ExecutionBody>,
    /// Where the next page begins, if there is one.
    pub(super) next_cursor: Option<String>,
}
