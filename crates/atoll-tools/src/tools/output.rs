//! A command that is followed to its end, and its output as a model sees it.

use std::io::Cursor;
use std::time::Duration;

use atoll_guest_client::{Command, ExitStatus, GuestError, ProcessEvent, ProcessInput};
use tokio::time::Instant;

use crate::cut::Collected;
use crate::definition::Call;
use crate::error::ToolError;
use crate::workplace::Place;

/// Where output is saved that does not fit.
pub(crate) const OUTPUTS: &str = "/tmp/atoll-outputs";
/// How long saving it may take.
const SAVE_BOUND: Duration = Duration::from_secs(20);
/// What a guest may take beyond a command's own timeout to end it.
const GRACE: Duration = Duration::from_secs(15);
/// A sandbox outlives the work in it by so much.
const KEEP_MARGIN: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug)]
pub(crate) enum End {
    Exited(ExitStatus),
    Timeout,
    Lost(GuestError),
}

/// A command that was followed.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) stdout: Collected,
    pub(crate) stderr: Collected,
    pub(crate) end: End,
    pub(crate) took: Duration,
}

/// Ends a command with everything it started, unless it ended by itself: whoever
/// cancels a call drops its future, and cannot wait here.
struct Leash(Option<ProcessInput>);

impl Drop for Leash {
    fn drop(&mut self) {
        if let (Some(input), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                if let Err(error) = input.kill_tree().await {
                    tracing::debug!("a cancelled command was not ended: {error}");
                }
            });
        }
    }
}

/// A line in a login shell.
pub(crate) fn shell(line: &str) -> Command {
    Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-l".to_owned(), "-c".to_owned(), line.to_owned()],
        ..Command::default()
    }
}

/// Says that a sandbox is being used for as long as `busy`.
pub(crate) async fn keep(call: &Call, place: &Place, busy: Duration) {
    let workplace = call.desk.workplace();
    workplace.keep(&place.id, busy + KEEP_MARGIN).await;
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started.
pub(crate) async fn follow(
    call: &Call,
    place: &Place,
    command: Command,
    timeout: Duration,
) -> Result<Followed, ToolError> {
    keep(call, place, timeout).await;
    let started = Instant::now();
    let command = Command {
        timeout: Some(timeout),
        ..command
    };
    let mut process = match place.guest.start(&command).await {
        Ok(process) => process,
        Err(error) => {
            let error = ToolError::of_guest(&error);
            return Err(call.desk.judge(place, error).await);
        }
    };
    let mut leash = Leash(Some(process.input()));
    let mut followed = Followed {
        stdout: Collected::default(),
        stderr: Collected::default(),
        end: End::Timeout,
        took: Duration::ZERO,
    };
    let deadline = started + timeout + GRACE;
    loop {
        let Ok(event) = tokio::time::timeout_at(deadline, process.next()).await else {
            break;
        };
        match event {
            Ok(Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes))) => {
                say_last_line(call, &bytes);
                followed.stdout.push(&bytes);
            }
            Ok(Some(ProcessEvent::Stderr(bytes))) => {
                say_last_line(call, &bytes);
                followed.stderr.push(&bytes);
            }
            Ok(Some(ProcessEvent::End(status))) => {
                leash.0 = None;
                followed.end = End::Exited(status);
                break;
            }
            Ok(None) => {
                let what = "the command ended without a status".to_owned();
                followed.end = End::Lost(GuestError::Protocol(what));
                break;
            }
            Err(GuestError::DeadlineExceeded) => {
                leash.0 = None;
                break;
            }
            Err(error) => {
                followed.end = End::Lost(error);
                break;
            }
        }
    }
    followed.took = started.elapsed();
    Ok(followed)
}

/// The last line is what a person would look at.
pub(crate) fn say_last_line(call: &Call, bytes: &[u8]) {
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(400)..]);
    let text = crate::cut::plain(&text);
    if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
        call.say(line.trim());
    }
}

/// A stream as a model sees it, and where all of it is if that is not all.
#[derive(Debug)]
pub(crate) struct Readable {
    pub(crate) text: String,
    pub(crate) full_output_path: Option<String>,
}

/// Shortens a stream; what does not fit is saved in the sandbox.
pub(crate) async fn readable(place: &Place, stream: Collected, name: &str) -> Readable {
    let shown = stream.shown();
    if !shown.is_cut() {
        return Readable {
            text: shown.text(""),
            full_output_path: None,
        };
    }
    let path = format!("{OUTPUTS}/{}-{name}.txt", uuid::Uuid::new_v4().simple());
    let kept = stream.into_kept();
    let guest = place.plain();
    let saving = guest.write_file(&path, None, Cursor::new(kept));
    let path = match tokio::time::timeout(SAVE_BOUND, saving).await {
        Ok(Ok(())) => Some(path),
        Ok(Err(error)) => {
            tracing::warn!("long output was not saved in sandbox {}: {error}", place.id);
            None
        }
        Err(_) => {
            tracing::warn!("long output was not saved in sandbox {} in time", place.id);
            None
        }
    };
    let rest = match &path {
        Some(path) => format!("read more with `read_file` {path} and an `offset`"),
        None => "it could not be saved: write it to a file and read that in parts".to_owned(),
    };
    Readable {
        text: shown.text(&rest),
        full_output_path: path,
    }
}

/// Milliseconds, as results have them.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
