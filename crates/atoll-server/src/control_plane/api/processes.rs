//! Processes of a sandbox that run in the background: each is an execution
//! that takes input, and whose output is read piece by piece.

use std::sync::Arc;
use std::time::Duration;

use atoll_control::executions::{ExecutionEvent, ExecutionWish, Followed, LiveExecution, Work};
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::Plane;
use super::executions::{execution_id, number_of};
use super::files::Encoding;
use super::identity::Requester;
use super::problem::{ErrorCode, Problem};
use super::request::{Body, Named, NamedTwice, Params};
use super::wire::Texts;
use super::wire_execution::ExecutionBody;

/// How long a process may take to take its input.
const INPUT_BOUND: Duration = Duration::from_secs(30);
/// How long the end of what was stopped is waited for.
const STOP_BOUND: Duration = Duration::from_secs(15);
/// Events of an answer, at most.
const EVENTS_MAX: usize = 1000;
/// How much a process may say before it is ended.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Kind of the executions that are processes.
const KIND: &str = "process";

/// A process to start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewProcess {
    /// A line for a shell.
    command: String,
    /// Where it begins.
    #[serde(default)]
    cwd: Option<String>,
    /// As whom it runs.
    #[serde(default)]
    user: Option<String>,
    /// Variables that win over the sandbox's.
    #[serde(default)]
    environment: Texts,
    /// When it is ended, in milliseconds; with its sandbox when absent.
    #[serde(default)]
    timeout_ms: Option<u64>,
}

/// Processes of a sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct ProcessList {
    /// The oldest first: those that run, and those that ended a moment ago. Of each
    /// output 4 KiB are here.
    processes: Vec<ExecutionBody>,
}

/// Input of a process.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct ProcessInputBody {
    /// What to write.
    data: String,
    /// How that is written.
    encoding: Encoding,
    /// Whether that is all.
    close: bool,
}

/// Output of a process, piece by piece.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct ProcessOutput {
    /// The pieces, in their order.
    output: Vec<OutputPiece>,
    /// What to send as `after` to get what follows.
    next: u64,
    /// Events that are not there any more: output came faster than it was read.
    dropped: u64,
    /// Whether nothing will follow.
    ended: bool,
}

/// A piece of output.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct OutputPiece {
    /// `stdout` or `stderr`.
    stream: &'static str,
    /// What it said.
    text: String,
}

pub(in super::super) async fn start_process(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    body: Result<Body<NewProcess>, Problem>,
) -> Result<(StatusCode, Json<ExecutionBody>), Problem> {
    let place = plane.places.find(&requester.caller, &id).await?;
    let Body(body) = body?;
    let wish = ExecutionWish {
        environment: body.environment,
        cwd: body.cwd,
        user: body.user,
        timeout: body.timeout_ms.map(Duration::from_millis),
        output_bytes: OUTPUT_BYTES_MAX,
        ..ExecutionWish::new(Work::Process { line: body.command })
    };
    let live = plane
        .executions
        .begin(&requester.caller, &place, wish)
        .await?;
    // It is known by its id from now on, also to the next server.
    plane.executions.flush().await;
    Ok((StatusCode::CREATED, Json(live.state().into())))
}

pub(in super::super) async fn processes(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<ProcessList>, Problem> {
    let row = plane.places.row(&requester.caller, &id).await?;
    let live = plane.executions.live_in(&requester.caller, &row.sandbox_id);
    let processes = live.into_iter().filter(|one| one.kind() == KIND);
    Ok(Json(ProcessList {
        processes: processes.map(|one| one.state().brief().into()).collect(),
    }))
}

pub(in super::super) async fn process(
    State(plane): State<Plane>,
    requester: Requester,
    NamedTwice(sandbox, id): NamedTwice,
) -> Result<Json<ExecutionBody>, Problem> {
    let live = find(&plane, &requester, &sandbox, &id).await?;
    Ok(Json(live.state().into()))
}

pub(in super::super) async fn output(
    State(plane): State<Plane>,
    requester: Requester,
    NamedTwice(sandbox, id): NamedTwice,
    params: Params,
) -> Result<Json<ProcessOutput>, Problem> {
    let live = find(&plane, &requester, &sandbox, &id).await?;
    let mut next = number_of(&live, "after", params.value("after")?)?;
    let (found, ended) = live.events().after(next, EVENTS_MAX);
    let (mut output, mut dropped) = (Vec::new(), 0);
    for one in found {
        match one {
            Followed::Dropped { first, last } => {
                dropped += last - first + 1;
                next = last;
            }
            Followed::Event(stamped) => {
                next = stamped.id;
                let (stream, text) = match stamped.event.as_ref() {
                    ExecutionEvent::Stdout { text } => ("stdout", text),
                    ExecutionEvent::Stderr { text } => ("stderr", text),
                    ExecutionEvent::Started { .. }
                    | ExecutionEvent::Result(_)
                    | ExecutionEvent::Error(_)
                    | ExecutionEvent::End(_) => continue,
                };
                output.push(OutputPiece {
                    stream,
                    text: text.clone(),
                });
            }
        }
    }
    Ok(Json(ProcessOutput {
        output,
        next,
        dropped,
        ended,
    }))
}

pub(in super::super) async fn write_to_process(
    State(plane): State<Plane>,
    requester: Requester,
    NamedTwice(sandbox, id): NamedTwice,
    body: Result<Body<ProcessInputBody>, Problem>,
) -> Result<StatusCode, Problem> {
    let live = find(&plane, &requester, &sandbox, &id).await?;
    let Body(body) = body?;
    let bytes = match body.encoding {
        Encoding::Utf8 => body.data.into_bytes(),
        Encoding::Base64 => STANDARD
            .decode(body.data)
            .map_err(|_| Problem::invalid("'data' is no base64"))?,
    };
    let ended = || Problem::new(ErrorCode::Conflict, "the process has ended");
    let input = live.input().ok_or_else(ended)?;
    let writing = async {
        input.send(&bytes).await?;
        if body.close {
            input.close().await
        } else {
            Ok(())
        }
    };
    match tokio::time::timeout(INPUT_BOUND, writing).await {
        Ok(written) => written?,
        Err(_) => {
            let message = "the process does not take its input; some of it may have been taken";
            return Err(Problem::new(ErrorCode::Conflict, message));
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

pub(in super::super) async fn stop_process(
    State(plane): State<Plane>,
    requester: Requester,
    NamedTwice(sandbox, id): NamedTwice,
) -> Result<StatusCode, Problem> {
    let live = find(&plane, &requester, &sandbox, &id).await?;
    live.cancel();
    if tokio::time::timeout(STOP_BOUND, live.ended())
        .await
        .is_err()
    {
        let message = "the process was told to end, and has not yet";
        return Err(Problem::new(ErrorCode::SandboxUnavailable, message));
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn find(
    plane: &Plane,
    requester: &Requester,
    sandbox: &str,
    id: &str,
) -> Result<Arc<LiveExecution>, Problem> {
    let row = plane.places.row(&requester.caller, sandbox).await?;
    let missing = || Problem::not_found("process");
    let id = execution_id(id).map_err(|_| missing())?;
    let live = plane.executions.live(&requester.caller, id);
    live.filter(|live| live.kind() == KIND && live.sandbox_id() == row.sandbox_id)
        .ok_or_else(missing)
}
