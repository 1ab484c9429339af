//! `start_process`, `read_process`, `write_process`, `stop_process`: what goes
//! on between calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_guest_client::{Command, PtySize, Signal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::output::{keep, shell};
use crate::cut::{HEAD_CHARS, TAIL_CHARS, plain};
use crate::definition::{Answer, Call, Outcome};
use crate::error::{ErrorCode, ToolError};
use crate::process::{Condition, News, Watched};

/// How long `start_process` waits for the first output, or the end.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How long `read_process` waits when it is not told.
const WAIT: Duration = Duration::from_secs(2);
const WAIT_MAX_SECONDS: f64 = 60.0;
/// How long a process may take to end after it was asked to.
const STOP_BOUND: Duration = Duration::from_secs(5);
/// How long input may wait for a process that does not read.
const WRITE_BOUND: Duration = Duration::from_secs(30);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    /// The command line, run by `bash -l -c`: a server, a watcher, an interactive program.
    command: String,
    /// Directory to run it in. Default: the user's home, `/home/user`.
    #[serde(default)]
    cwd: Option<String>,
    /// Environment variables for this process only.
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// Whether it gets a terminal (120 columns, 40 lines) instead of pipes. Default: false.
    #[serde(default)]
    terminal: Option<bool>,
    /// Which sandbox. Default: this session's own, made on first use.
    #[serde(default)]
    sandbox_id: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    /// What `start_process` returned.
    process_id: String,
    /// Seconds to wait for output when there is none yet. Default 2, at most 60.
    #[serde(default)]
    wait: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    /// What `start_process` returned.
    process_id: String,
    /// Text for its standard input. End a line with a newline.
    #[serde(default)]
    input: String,
    /// Whether its input ends after this. Default: false.
    #[serde(default)]
    close_stdin: Option<bool>,
    /// Seconds to wait for what it answers. Default 2, at most 60.
    #[serde(default)]
    wait: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stop {
    /// What `start_process` returned.
    process_id: String,
}

/// How a process is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Running,
    Ended,
    Lost,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Report {
    /// Name of the process in this session.
    process_id: String,
    /// The sandbox it is in.
    sandbox_id: String,
    /// Whether it runs.
    state: State,
    /// Its exit status, when it ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// How it ended, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// Output of both kinds since the last call. When it is long, the rest comes with the next `read_process`.
    output: String,
    /// Whether more output waits.
    has_more: bool,
    /// Bytes of output that were lost because nobody read them in time.
    lost_bytes: u64,
}

pub(crate) async fn start(call: &Call, arguments: Start) -> Answer {
    let place = call.desk.place(arguments.sandbox_id.as_deref()).await?;
    keep(call, &place, Duration::ZERO).await;
    let command = Command {
        cwd: arguments.cwd,
        envs: arguments.envs,
        stdin: true,
        pty: (arguments.terminal == Some(true)).then_some(PtySize {
            cols: 120,
            rows: 40,
        }),
        ..shell(&arguments.command)
    };
    let process = match place.guest.start(&command).await {
        Ok(process) => process,
        Err(error) => {
            let error = ToolError::of_guest(&error);
            return Err(call.desk.judge(&place, error).await.into());
        }
    };
    let input = process.input();
    let watched = Watched::follow(&place.id, &arguments.command, process);
    let (number, process) = match call.desk.watch(watched) {
        Ok(watched) => watched,
        Err(error) => {
            // Nobody would ever end it.
            let _ = input.kill_tree().await;
            return Err(error.into());
        }
    };
    report(number, &process, FIRST_WAIT).await
}

pub(crate) async fn read(call: &Call, arguments: Read) -> Answer {
    let wait = patience(arguments.wait)?;
    let (number, process) = found(call, &arguments.process_id)?;
    touch(call, &process).await;
    report(number, &process, wait).await
}

pub(crate) async fn write(call: &Call, arguments: Write) -> Answer {
    let wait = patience(arguments.wait)?;
    let (number, process) = found(call, &arguments.process_id)?;
    touch(call, &process).await;
    let sending = async {
        if !arguments.input.is_empty() {
            process.input().send(arguments.input.as_bytes()).await?;
        }
        if arguments.close_stdin == Some(true) {
            process.input().close().await?;
        }
        Ok::<(), atoll_guest_client::GuestError>(())
    };
    match tokio::time::timeout(WRITE_BOUND, sending).await {
        Ok(Ok(())) => report(number, &process, wait).await,
        Ok(Err(error)) if process.ended(FIRST_WAIT).await => Err(ToolError::new(
            ErrorCode::ProcessNotFound,
            format!(
                "`{}` has ended and takes no input: {error}",
                arguments.process_id
            ),
            "read its last output with `read_process`",
        )
        .into()),
        Ok(Err(error)) => Err(ToolError::of_guest(&error).into()),
        Err(_) => Err(ToolError::new(
            ErrorCode::Timeout,
            "the process does not read its input",
            "look at its output with `read_process`, or end it with `stop_process`",
        )
        .into()),
    }
}

pub(crate) async fn stop(call: &Call, arguments: Stop) -> Answer {
    let (number, process) = found(call, &arguments.process_id)?;
    if !process.has_ended() {
        // One that ends meanwhile is what was asked for.
        let _ = process.input().signal(Signal::Terminate).await;
        if !process.ended(STOP_BOUND).await {
            let _ = process.input().kill_tree().await;
            process.ended(STOP_BOUND).await;
        } else {
            // What it started and left behind.
            let _ = process.input().kill_tree().await;
        }
    }
    report(number, &process, Duration::ZERO).await
}

async fn touch(call: &Call, process: &Watched) {
    let margin = Duration::from_secs(60);
    call.desk.workplace().keep(process.sandbox(), margin).await;
}

fn found(call: &Call, name: &str) -> Result<(u64, Arc<Watched>), ToolError> {
    let number = name
        .strip_prefix('p')
        .and_then(|digits| digits.parse().ok());
    number
        .and_then(|number| Some((number, call.desk.process(number)?)))
        .ok_or_else(|| {
            let shown: String = name.chars().take(64).collect();
            ToolError::new(
                ErrorCode::ProcessNotFound,
                format!("this session has no process `{shown}`"),
                "use what `start_process` returned; processes end with their sandbox",
            )
        })
}

fn patience(seconds: Option<f64>) -> Result<Duration, ToolError> {
    match seconds {
        None => Ok(WAIT),
        Some(seconds) if (0.0..=WAIT_MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        Some(seconds) => Err(ToolError::arguments(
            format!("`wait` cannot be {seconds}"),
            format!("give 0 to {WAIT_MAX_SECONDS} seconds, and call again for more"),
        )),
    }
}

async fn report(number: u64, process: &Watched, wait: Duration) -> Answer {
    let bytes_max = HEAD_CHARS + TAIL_CHARS;
    let News {
        output,
        lost_bytes,
        condition,
    } = process.read(bytes_max, wait).await;
    let has_more = output.len() == bytes_max;
    let (state, exit_code, status) = match &condition {
        Condition::Running => (State::Running, None, None),
        Condition::Ended(status) => {
            let code = Some(status.code()).filter(|code| *code >= 0);
            (State::Ended, code, Some(status.text()))
        }
        Condition::Lost(why) => (State::Lost, None, Some(why.clone())),
    };
    let report = Report {
        process_id: format!("p{number}"),
        sandbox_id: process.sandbox().to_owned(),
        state,
        exit_code,
        status,
        output: plain(&String::from_utf8_lossy(&output)),
        has_more,
        lost_bytes,
    };
    let mut text = report.output.clone();
    super::execute_command::separate(&mut text);
    if lost_bytes > 0 {
        text.push_str(&format!("[{lost_bytes} bytes before this were lost]\n"));
    }
    let state = match (&report.state, &report.status) {
        (State::Running, _) => format!("`{}` runs as {}", process.command(), report.process_id),
        (_, Some(status)) => format!("{} ended: {status}", report.process_id),
        (_, None) => format!("{} ended", report.process_id),
    };
    text.push_str(&format!("[{state}]"));
    Ok(Outcome {
        text,
        structured: serde_json::to_value(&report).unwrap_or_default(),
        images: Vec::new(),
    })
}
