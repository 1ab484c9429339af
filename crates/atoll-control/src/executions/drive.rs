//! One execution, from the first call to the guest to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_engine::Stats;
use atoll_guest_client::{
    CodeEvent, CodeRun, ExitStatus, GuestError, Narrow, Process, ProcessEvent,
};
use atoll_store::db::Execution;
use tokio::sync::oneshot;

use super::attempt::Attempts;
use super::judge::{Ended, Verdict, Witness};
use super::live::lock;
use super::report::{EndOfExecution, forms};
use super::wish::Asked;
use super::{
    Attempt, BeginError, ExecutionEvent, ExecutionState, ExecutionWish, LiveExecution, OutcomeKind,
    Place, Shared,
};
use crate::identity::now_ms;
use crate::outcome::EVIDENCE_BYTES;

/// What a guest may say at once, where many of them talk to one server: all that
/// code prints in one go (16 MiB), with what is around it.
const NARROW: Narrow = Narrow {
    line_bytes: 17 * 1024 * 1024,
    list_bytes: 16 * 1024 * 1024,
};

/// How long the end of a sandbox may take to be on record.
const RECORD_BOUND: Duration = Duration::from_secs(2);

/// Runs in a task of its own: who asked may go away at any moment.
pub(super) async fn begin(
    shared: &Arc<Shared>,
    live: &Arc<LiveExecution>,
    place: &Place,
    (wish, earlier): (ExecutionWish, Vec<Attempt>),
) -> Result<(), BeginError> {
    let (reply, begun) = oneshot::channel();
    let drive = Drive {
        shared: Arc::clone(shared),
        live: Arc::clone(live),
        place: place.clone(),
        wish,
        earlier,
        evidence: Vec::new(),
    };
    tokio::spawn(drive.run(reply));
    let lost = || BeginError::Uncertain("the server is being stopped".to_owned());
    begun.await.unwrap_or_else(|_| Err(lost()))
}

/// What runs.
enum Run {
    Code(CodeRun),
    Command(Process),
    /// A command whose time was over before it was heard of; its guest ends it.
    Late,
}

struct Drive {
    shared: Arc<Shared>,
    live: Arc<LiveExecution>,
    place: Place,
    wish: ExecutionWish,
    /// Attempts in another sandbox.
    earlier: Vec<Attempt>,
    /// The end of standard error.
    evidence: Vec<u8>,
}

impl Drive {
    async fn run(mut self, reply: oneshot::Sender<Result<(), BeginError>>) {
        self.shared.recorder.record(self.live.first().clone()).await;
        let begun = Instant::now();
        let sandbox = Arc::clone(&self.place.sandbox);
        let (before, started) = tokio::join!(sandbox.live.counters(), self.start());
        let before = before.ok();
        let run = match started {
            Ok((run, attempts)) => {
                lock(&self.live.collected).attempts = attempts;
                run
            }
            Err(error) => {
                let verdict = unbegun(&error);
                self.finish(verdict, None, (begun.elapsed(), before, None))
                    .await;
                // Who does not wait needs no answer.
                let _ = reply.send(Err(error));
                return;
            }
        };
        self.live.events().push(ExecutionEvent::Started {
            execution_id: self.live.id().to_string(),
            sandbox_id: self.live.sandbox_id().to_owned(),
        });
        if reply.send(Ok(())).is_err() {
            // Nobody knows of it.
            self.live.cancel();
        }
        let ended = match run {
            Run::Code(run) => self.follow_code(run, begun).await,
            Run::Command(process) => self.follow_command(process).await,
            Run::Late => Ended::TimedOut(self.wish.timeout.unwrap_or_default()),
        };
        let duration = begun.elapsed();
        let after = sandbox.live.counters().await.ok();
        let outcome = match &ended {
            Ended::Lost(_) => sandbox.live.wait(RECORD_BOUND).await.ok().flatten(),
            _ => None,
        };
        let witness = Witness {
            tier: self.shared.lifecycle.tier(),
            limits: &sandbox.limits,
            before: before.clone(),
            after: after.clone(),
            sandbox: outcome,
            evidence: &self.evidence,
        };
        let verdict = witness.judge(&ended);
        let exit = match &ended {
            Ended::Exit(ExitStatus::Exited(code)) => Some(i64::from(*code)),
            // As shells tell it.
            Ended::Exit(ExitStatus::Signaled(signal)) => Some(128 + i64::from(*signal)),
            _ => None,
        };
        self.finish(verdict, exit, (duration, before, after)).await;
    }

    /// Hands it to the guest. What certainly did not get there is tried again.
    async fn start(&self) -> Result<(Run, Vec<Attempt>), BeginError> {
        let guest = self.place.sandbox.live.guest().clone();
        let guest = guest.with_bounds(NARROW);
        let asked = self.wish.asked();
        let mut attempts = Attempts::after(self.earlier.clone());
        loop {
            let started = match &asked {
                Asked::Code(code) => guest.run_code(code).await.map(Run::Code),
                Asked::Command(command) => guest.start(command).await.map(Run::Command),
            };
            let error = match started {
                Ok(run) => return Ok((run, attempts.failed())),
                Err(error) => error,
            };
            match error {
                // Nobody was dialed: nothing was sent.
                GuestError::Unreachable(_) => {
                    let message = error.to_string();
                    if attempts.again_after(message.clone()).await {
                        continue;
                    }
                    return Err(BeginError::Unavailable {
                        message,
                        attempts: attempts.failed(),
                    });
                }
                GuestError::Rpc { message, .. } | GuestError::Refused { message, .. } => {
                    return Err(BeginError::Invalid(message));
                }
                GuestError::DeadlineExceeded => return Ok((Run::Late, attempts.failed())),
                GuestError::NotForwarded(_) | GuestError::Source(_) => {
                    return Err(BeginError::Invalid(error.to_string()));
                }
                GuestError::Timeout { .. }
                | GuestError::Unauthorized(_)
                | GuestError::Protocol(_)
                | GuestError::TooLarge { .. }
                | GuestError::Disconnected(_) => {
                    return Err(BeginError::Uncertain(error.to_string()));
                }
            }
        }
    }

    async fn follow_code(&mut self, mut run: CodeRun, begun: Instant) -> Ended {
        let live = Arc::clone(&self.live);
        let time = self.wish.timeout.unwrap_or(super::wish::TIMEOUT_MAX);
        let deadline = tokio::time::sleep(time.saturating_sub(begun.elapsed()));
        tokio::pin!(deadline);
        let mut raised = None;
        loop {
            let event = tokio::select! {
                biased;
                () = live.cancelled() => return Ended::Cancelled,
                () = &mut deadline => return Ended::TimedOut(time),
                event = run.next() => event,
            };
            match event {
                Ok(Some(CodeEvent::Stdout { text })) => {
                    self.keep(Said::Stdout, text.as_bytes());
                    self.show(Said::Stdout, text);
                }
                Ok(Some(CodeEvent::Stderr { text })) => {
                    self.keep(Said::Stderr, text.as_bytes());
                    self.show(Said::Stderr, text);
                }
                Ok(Some(CodeEvent::Result(result))) => {
                    let forms = forms(*result);
                    let kept = lock(&live.collected).result(forms.clone());
                    if kept {
                        live.events().push(ExecutionEvent::Result(forms));
                    }
                }
                Ok(Some(CodeEvent::Error(error))) => {
                    let is_state_lost = error.is_state_lost();
                    let error = super::report::RaisedError::from(error);
                    live.events().push(ExecutionEvent::Error(error.clone()));
                    lock(&live.collected).error = Some(error.clone());
                    raised = Some(if is_state_lost {
                        Ended::KernelDied(error.value)
                    } else {
                        Ended::Raised(error)
                    });
                }
                Ok(Some(CodeEvent::NumberOfExecutions { execution_count })) => {
                    lock(&live.collected).execution_count = Some(execution_count);
                }
                Ok(Some(CodeEvent::Keepalive | CodeEvent::Unknown)) => {}
                Ok(Some(CodeEvent::EndOfExecution) | None) => {
                    lock(&live.collected).left_out(run.left_out());
                    return raised.unwrap_or(Ended::Through);
                }
                Err(error) => return Ended::Lost(error.to_string()),
            }
            if let Some(limit) = self.is_too_much() {
                return Ended::TooMuchOutput(limit);
            }
        }
    }

    async fn follow_command(&mut self, mut process: Process) -> Ended {
        let live = Arc::clone(&self.live);
        let input = process.input();
        live.takes_input(input.clone());
        let (mut stdout, mut stderr) = (Pieces::default(), Pieces::default());
        loop {
            let event = tokio::select! {
                biased;
                () = live.cancelled() => {
                    end_tree(&input).await;
                    return Ended::Cancelled;
                }
                event = process.next() => event,
            };
            match event {
                Ok(Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes))) => {
                    self.keep(Said::Stdout, &bytes);
                    self.show(Said::Stdout, stdout.text(&bytes));
                }
                Ok(Some(ProcessEvent::Stderr(bytes))) => {
                    self.keep(Said::Stderr, &bytes);
                    self.show(Said::Stderr, stderr.text(&bytes));
                }
                Ok(Some(ProcessEvent::End(exit))) => return Ended::Exit(exit),
                Ok(None) => return Ended::Lost("it ended without an exit status".to_owned()),
                Err(GuestError::DeadlineExceeded) => {
                    return Ended::TimedOut(self.wish.timeout.unwrap_or_default());
                }
                Err(error) => return Ended::Lost(error.to_string()),
            }
            if let Some(limit) = self.is_too_much() {
                end_tree(&input).await;
                return Ended::TooMuchOutput(limit);
            }
        }
    }

    fn keep(&mut self, stream: Said, bytes: &[u8]) {
        let mut collected = lock(&self.live.collected);
        match stream {
            Said::Stdout => collected.stdout(bytes),
            Said::Stderr => {
                collected.stderr(bytes);
                self.evidence.extend_from_slice(bytes);
                let surplus = self.evidence.len().saturating_sub(EVIDENCE_BYTES);
                self.evidence.drain(..surplus);
            }
        }
    }

    fn show(&self, stream: Said, text: String) {
        if text.is_empty() {
            return; // half a character, whose other half will come
        }
        self.live.events().push(match stream {
            Said::Stdout => ExecutionEvent::Stdout { text },
            Said::Stderr => ExecutionEvent::Stderr { text },
        });
    }

    /// The limit of its output, if it said more.
    fn is_too_much(&self) -> Option<u64> {
        let (stdout, stderr) = lock(&self.live.collected).output_bytes();
        let limit = self.wish.output_bytes;
        (stdout.saturating_add(stderr) > limit).then_some(limit)
    }

    async fn finish(
        &self,
        verdict: Verdict,
        exit_code: Option<i64>,
        (duration, before, after): (Duration, Option<Stats>, Option<Stats>),
    ) {
        let live = &self.live;
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (report, stdout, stderr) = {
            let mut collected = lock(&live.collected);
            collected.message.clone_from(&verdict.message);
            collected.state_lost.clone_from(&verdict.state_lost);
            let (stdout, stderr) = collected.output_bytes();
            (collected.report(), stdout, stderr)
        };
        let cpu = after.as_ref().zip(before.as_ref());
        let duration_ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let status = verdict.kind.status();
        let row = Execution {
            status,
            outcome: Some(verdict.kind.as_str().to_owned()),
            exit_code,
            report: report.for_history(),
            stdout_bytes: signed(stdout),
            stderr_bytes: signed(stderr),
            ended_at_ms: Some(now_ms()),
            duration_ms: Some(duration_ms),
            cpu_usec: cpu
                .map(|(after, before)| signed(after.cpu_usec.saturating_sub(before.cpu_usec))),
            memory_peak_bytes: after.map(|after| signed(after.memory_peak_bytes)),
            ..live.first().clone()
        };
        let bytes = report.bytes() + live.events().bytes();
        self.shared.recorder.record(row.clone()).await;
        live.end(Arc::new(ExecutionState {
            execution: row,
            report,
            sandbox: None,
        }));
        live.events()
            .push(ExecutionEvent::End(Box::new(EndOfExecution {
                status: status.as_str().to_owned(),
                outcome: verdict.kind.as_str().to_owned(),
                message: verdict.message,
                exit_code,
                duration_ms: Some(duration_ms),
                state_lost: verdict.state_lost,
            })));
        self.shared.live.ended(live, bytes);
    }
}

/// What is written of something that did not begin.
fn unbegun(error: &BeginError) -> Verdict {
    let kind = match error {
        BeginError::Invalid(_) | BeginError::Busy { .. } => OutcomeKind::InvalidRequest,
        BeginError::Unavailable { .. } | BeginError::Uncertain(_) => {
            OutcomeKind::SandboxUnavailable
        }
    };
    Verdict {
        kind,
        message: Some(error.to_string()),
        state_lost: Vec::new(),
    }
}

/// Ends a command with everything it started.
async fn end_tree(input: &atoll_guest_client::ProcessInput) {
    if let Err(error) = input.kill_tree().await {
        tracing::debug!("a command that was to be ended may have ended by itself: {error}");
    }
}

#[derive(Clone, Copy)]
enum Said {
    Stdout,
    Stderr,
}

/// Bytes as text, where characters may come in pieces.
#[derive(Default)]
struct Pieces(Vec<u8>);

impl Pieces {
    fn text(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.0) {
            Ok(_) => self.0.len(),
            // Only what may become a character is kept back.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => incomplete_from(&self.0),
        };
        let rest = self.0.split_off(whole);
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0 = rest;
        text
    }
}

/// Where a character begins that its text ends within; the end, if there is none.
fn incomplete_from(bytes: &[u8]) -> usize {
    let start = bytes.len().saturating_sub(3);
    (start..bytes.len())
        .find(|&at| {
            matches!(std::str::from_utf8(&bytes[at..]), Err(error)
                if error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_in_pieces_become_whole_and_broken_ones_pass() {
        let mut pieces = Pieces::default();
        let text = "aü€😀".as_bytes();
        let shown: String = text.iter().map(|byte| pieces.text(&[*byte])).collect();
        assert_eq!(shown, "aü€😀");
        assert_eq!(pieces.text(b"\xff\xfea"), "\u{fffd}\u{fffd}a");
        assert_eq!(pieces.text(b"\xff\xc3"), "\u{fffd}");
        assert_eq!(pieces.text(b"\xbc"), "ü");
    }
}
