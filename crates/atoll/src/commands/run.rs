//! `atoll run`: one program, one fresh sandbox, its output and its exit code.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use atoll_control::outcome::{EVIDENCE_BYTES, explain};
use atoll_engine::{Outcome, SandboxError, Stats, Tier};
use atoll_guest_client::{ExitStatus, GuestError, ProcessEvent, ProcessInput};
use serde::Serialize;

use super::inputs::{self, DEFAULT_TEMPLATE, Opened};
use super::interruption::Interruption;
use super::program::Program;
use super::{run_notebook, run_rich};
use crate::arguments::RunArguments;
use crate::failure;
use crate::home::Home;

/// How much output `--json` keeps of each stream.
const JSON_OUTPUT_LIMIT: usize = 8 * 1024 * 1024;

/// The one object that `--json` prints.
#[derive(Serialize)]
struct RunReport<'a> {
    sandbox_id: &'a str,
    template: &'a str,
    isolation: Tier,
    isolation_reason: &'a str,
    outcome: &'a Outcome,
    exit_code: u8,
    stdout: String,
    stderr: String,
    /// Bytes of output beyond what this object holds.
    truncated_bytes: u64,
    duration_ms: u64,
    usage: &'a Stats,
}

pub(crate) async fn run(home: &Home, arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    arguments.check()?;
    if let Some(path) = arguments.notebook() {
        return run_notebook::run(home, arguments, path).await;
    }
    let program = Program::read(arguments)?;
    if arguments.rich {
        return run_rich::run(home, arguments, &program).await;
    }
    let mut interrupted = Interruption::listen()?;
    let opened = tokio::select! {
        opened = inputs::open(home, &arguments.sandbox, DEFAULT_TEMPLATE, arguments.lifetime()) => opened?,
        // The monitor notices that its client is gone and removes what it made.
        code = interrupted.next() => return Ok(code),
    };
    let finished = tokio::select! {
        finished = execute(&opened, arguments, &program) => finished,
        code = interrupted.next() => {
            opened.live.destroy().await.ok();
            return Ok(code);
        }
    };
    let destroyed = opened.live.destroy().await;
    let finished = finished?;
    match destroyed {
        // One that ended before its program left nothing to remove.
        Ok(_) | Err(SandboxError::Gone) => {}
        Err(error) => return Err(error).context("the sandbox could not be removed completely"),
    }
    finished.show(&opened, arguments)
}

/// What came of a program.
struct Finished {
    outcome: Outcome,
    /// How the program itself ended, if it did.
    exit: Option<ExitStatus>,
    stats: Stats,
    duration: Duration,
    output: Collected,
}

async fn execute(
    opened: &Opened,
    arguments: &RunArguments,
    program: &Program,
) -> anyhow::Result<Finished> {
    let Opened {
        live,
        template,
        limits,
        ..
    } = opened;
    let path = format!(
        "{}/{}",
        template.workdir.trim_end_matches('/'),
        program.name
    );
    copy_in(live, &path, &program.text)
        .await
        .context("cannot copy the program into the sandbox")?;
    let started = Instant::now();
    let mut process = live
        .guest()
        .start(&program.command(&arguments.program_arguments(), arguments.timeout))
        .await
        .with_context(|| format!("cannot start the program on template `{}`", template.name))?;
    // A program that came by standard input has taken it all.
    let input_is_free = arguments.program() != Some(Path::new("-"));
    let input = process.input();
    let feeding = tokio::spawn(async move {
        if input_is_free {
            feed(&input).await;
        } else {
            input.close().await.ok();
        }
    });

    let mut output = Collected::new(arguments);
    let ended = loop {
        match process.next().await {
            Ok(Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes))) => {
                output.take(Stream::Stdout, &bytes)?;
            }
            Ok(Some(ProcessEvent::Stderr(bytes))) => output.take(Stream::Stderr, &bytes)?,
            Ok(Some(ProcessEvent::End(exit))) => break Ended::Exit(exit),
            Err(GuestError::DeadlineExceeded) => break Ended::Timeout,
            Ok(None) => break Ended::Lost("its output ended without an exit status".to_owned()),
            Err(error) => break Ended::Lost(error.to_string()),
        }
        if output.total > arguments.max_output {
            break Ended::TooMuchOutput;
        }
    };
    feeding.abort();
    let duration = started.elapsed();
    let stats = live.stats().await.unwrap_or_default();
    let exit = match &ended {
        Ended::Exit(exit) => Some(*exit),
        _ => None,
    };
    let outcome = match ended {
        Ended::Exit(exit) => explain(
            opened.isolation.tier,
            &exit,
            &stats,
            limits,
            &output.evidence,
        ),
        Ended::Timeout => Outcome::Timeout {
            limit_ms: u64::try_from(arguments.timeout.as_millis()).unwrap_or(u64::MAX),
        },
        Ended::TooMuchOutput => Outcome::OutputLimit {
            limit_bytes: arguments.max_output,
        },
        // The guest is gone or lies: what the host saw counts.
        Ended::Lost(detail) => match live.wait(Duration::from_secs(2)).await {
            Ok(Some(outcome)) => outcome,
            _ if stats.oom_kills > 0 => Outcome::MemoryLimit {
                limit_mib: limits.memory_mib,
            },
            _ => Outcome::Crashed { detail },
        },
    };
    Ok(Finished {
        outcome,
        exit,
        stats,
        duration,
        output,
    })
}

/// Puts the program where it runs. A template may have a directory that its user cannot write to.
async fn copy_in(
    live: &atoll_control::LiveSandbox,
    path: &str,
    text: &[u8],
) -> Result<(), GuestError> {
    let write = |user| {
        let text = std::io::Cursor::new(text.to_vec());
        live.guest().write_file(path, user, text)
    };
    match write(None).await {
        Err(GuestError::Refused { status: 403, .. }) => write(Some("root")).await,
        other => other,
    }
}

/// How the stream of events of a program ended.
enum Ended {
    Exit(ExitStatus),
    Timeout,
    TooMuchOutput,
    Lost(String),
}

/// Hands standard input on until it ends.
async fn feed(input: &ProcessInput) {
    use tokio::io::AsyncReadExt as _;
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0_u8; 32 * 1024];
    loop {
        match stdin.read(&mut buffer).await {
            Ok(0) | Err(_) => {
                input.close().await.ok(); // the program may have ended first
                return;
            }
            Ok(length) => {
                if input.send(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

/// Output on its way: shown at once, or kept for `--json`.
struct Collected {
    live: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The end of standard error.
    evidence: Vec<u8>,
    total: u64,
    /// How much is passed on; what is beyond is cut off.
    limit: u64,
    truncated: u64,
}

impl Collected {
    fn new(arguments: &RunArguments) -> Self {
        Self {
            live: !arguments.json,
            stdout: Vec::new(),
            stderr: Vec::new(),
            evidence: Vec::new(),
            total: 0,
            limit: arguments.max_output,
            truncated: 0,
        }
    }

    fn take(&mut self, stream: Stream, bytes: &[u8]) -> anyhow::Result<()> {
        let allowed = self.limit.saturating_sub(self.total);
        let allowed = usize::try_from(allowed).map_or(bytes.len(), |room| room.min(bytes.len()));
        self.total += bytes.len() as u64;
        self.truncated += (bytes.len() - allowed) as u64;
        let bytes = &bytes[..allowed];
        if matches!(stream, Stream::Stderr) {
            self.evidence.extend_from_slice(bytes);
            let surplus = self.evidence.len().saturating_sub(EVIDENCE_BYTES);
            self.evidence.drain(..surplus);
        }
        if self.live {
            return match stream {
                Stream::Stdout => write_through(std::io::stdout().lock(), bytes),
                Stream::Stderr => write_through(std::io::stderr().lock(), bytes),
            };
        }
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let room = JSON_OUTPUT_LIMIT
            .saturating_sub(kept.len())
            .min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
        self.truncated += (bytes.len() - room) as u64;
        Ok(())
    }
}

fn write_through(mut out: impl std::io::Write, bytes: &[u8]) -> anyhow::Result<()> {
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .context("nobody takes the output any more")
}

impl Finished {
    fn exit_code(&self) -> u8 {
        let low_byte = |code: i32| u8::try_from(code & 0xff).unwrap_or(1);
        match (&self.outcome, self.exit) {
            (Outcome::Timeout { .. }, _) => 124,
            (Outcome::MemoryLimit { .. }, _) => 137,
            (Outcome::OutputLimit { .. }, _) => 1,
            (_, Some(ExitStatus::Exited(code))) => low_byte(code),
            (_, Some(ExitStatus::Signaled(signal))) => low_byte(128 + signal),
            (_, None) => failure::OWN_FAILURE,
        }
    }

    fn show(self, opened: &Opened, arguments: &RunArguments) -> anyhow::Result<ExitCode> {
        let exit_code = self.exit_code();
        if arguments.json {
            let report = RunReport {
                sandbox_id: opened.live.sandbox().id().as_str(),
                template: opened.template.name.as_str(),
                isolation: opened.isolation.tier,
                isolation_reason: &opened.isolation.reason,
                outcome: &self.outcome,
                exit_code,
                stdout: String::from_utf8_lossy(&self.output.stdout).into_owned(),
                stderr: String::from_utf8_lossy(&self.output.stderr).into_owned(),
                truncated_bytes: self.output.truncated,
                duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
                usage: &self.stats,
            };
            let mut out = std::io::stdout().lock();
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else if !matches!(self.outcome, Outcome::Exited { .. }) {
            if std::io::stderr().is_terminal() && !self.output.evidence.ends_with(b"\n") {
                eprintln!();
            }
            eprintln!("atoll: {}", self.outcome);
            if let Some(hint) = hint(&self.outcome) {
                eprintln!("hint: {hint}");
            }
        }
        Ok(ExitCode::from(exit_code))
    }
}

/// What a user can do about an outcome.
pub(super) fn hint(outcome: &Outcome) -> Option<String> {
    Some(match outcome {
        Outcome::MemoryLimit { limit_mib } => {
            format!("allow more, for example --memory {}M", limit_mib * 2)
        }
        Outcome::PidsLimit { limit } => format!("allow more, for example --pids {}", limit * 2),
        Outcome::DiskFull { limit_mib } => {
            format!("allow more, for example --disk {}M", limit_mib * 2)
        }
        Outcome::InodesFull { limit } => format!("allow more, for example --inodes {}", limit * 2),
        Outcome::OpenFilesLimit { limit } => {
            format!("allow more, for example --open-files {}", limit * 2)
        }
        Outcome::Timeout { limit_ms } => format!(
            "allow more, for example --timeout {}s",
            limit_ms.div_ceil(1000) * 2
        ),
        Outcome::OutputLimit { .. } => {
            "allow more with --max-output, or write to a file".to_owned()
        }
        _ => return None,
    })
}
