//! `execute_command`: a line in a shell, to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_guest_client::{Command, ExitStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::output::{End, Followed, follow, millis, readable, shell};
use super::timeout;
use crate::definition::{Answer, Call, Failure, Outcome};
use crate::error::{ErrorCode, ToolError};
use crate::workplace::Place;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    /// The command line, run by `bash -l -c`. Pipes, redirections and `&&` work.
    pub(crate) command: String,
    /// Directory to run it in. Default: the user's home, `/home/user`.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Environment variables for this command only.
    #[serde(default)]
    pub(crate) envs: BTreeMap<String, String>,
    /// Seconds after which the command and everything it started is killed. Default 60, at most 3600.
    #[serde(default)]
    pub(crate) timeout: Option<f64>,
    /// Which sandbox. Default: this session's own, made on first use.
    #[serde(default)]
    pub(crate) sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ran {
    /// The sandbox it ran in.
    pub(crate) sandbox_id: String,
    /// Its exit status; absent when it was killed by a signal or at its timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// How it ended, in words.
    pub(crate) status: String,
    /// What it wrote to standard output, cut in the middle when long.
    pub(crate) stdout: String,
    /// What it wrote to standard error, cut in the middle when long.
    pub(crate) stderr: String,
    /// File inside the sandbox with all of standard output, when it was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stdout_path: Option<String>,
    /// File inside the sandbox with all of standard error, when it was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stderr_path: Option<String>,
    /// Bytes of output, of both kinds together.
    pub(crate) output_bytes: u64,
    /// How long it took.
    pub(crate) duration_ms: u64,
}

pub(crate) async fn run(call: &Call, arguments: Arguments) -> Answer {
    let limit = timeout(arguments.timeout, TIMEOUT)?;
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    let command = Command {
        cwd: arguments.cwd,
        envs: arguments.envs,
        ..shell(&arguments.command)
    };
    let followed = follow(call, &place, command, limit).await?;
    told(call, &place, followed, limit).await
}

/// What a command that was followed means for a model.
pub(crate) async fn told(
    call: &Call,
    place: &Place,
    followed: Followed,
    limit: Duration,
) -> Answer {
    let Followed {
        stdout,
        stderr,
        end,
        took,
    } = followed;
    let output_bytes = stdout.total() + stderr.total();
    let stdout = readable(place, stdout, "stdout").await;
    let stderr = readable(place, stderr, "stderr").await;
    let (exit_code, status) = match &end {
        End::Exited(ExitStatus::Exited(code)) => (Some(*code), format!("exit status {code}")),
        End::Exited(status @ ExitStatus::Signaled(_)) => (None, status.text()),
        End::Timeout => (None, format!("killed after {} s", limit.as_secs_f64())),
        End::Lost(error) => (None, error.to_string()),
    };
    let ran = Ran {
        sandbox_id: place.id.clone(),
        exit_code,
        status,
        stdout: stdout.text,
        stderr: stderr.text,
        stdout_path: stdout.full_output_path,
        stderr_path: stderr.full_output_path,
        output_bytes,
        duration_ms: millis(took),
    };
    let outcome = Outcome {
        text: text(&ran),
        structured: serde_json::to_value(&ran).unwrap_or_default(),
        images: Vec::new(),
    };
    let error = match end {
        End::Exited(_) => return Ok(outcome),
        End::Timeout => ToolError::new(
            ErrorCode::Timeout,
            format!(
                "the command ran longer than {} s and was killed",
                limit.as_secs_f64()
            ),
            "allow more with `timeout`, or use `start_process` for what goes on",
        ),
        End::Lost(error) => call.desk.judge(place, ToolError::of_guest(&error)).await,
    };
    Err(Failure {
        error,
        partial: Some(Box::new(outcome)),
    })
}

fn text(ran: &Ran) -> String {
    let mut text = ran.stdout.clone();
    if !ran.stderr.is_empty() {
        separate(&mut text);
        text.push_str("[stderr]\n");
        text.push_str(&ran.stderr);
    }
    if ran.exit_code != Some(0) || text.is_empty() {
        separate(&mut text);
        text.push_str(&format!("[{}]", ran.status));
    }
    text
}

pub(crate) fn separate(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}
