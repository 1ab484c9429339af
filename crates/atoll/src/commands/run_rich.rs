//! `atoll run --rich`: one program as one cell in the kernel of a fresh
//! sandbox. What it prints comes at once, plots become files, the value of
//! its last expression is shown.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use atoll_engine::{Outcome, SandboxError, Stats, Tier};
use atoll_guest_client::{CodeError, CodeToRun};
use serde::Serialize;

use super::inputs::{self, DEFAULT_CELL_TEMPLATE, Opened};
use super::interruption::Interruption;
use super::program::Program;
use super::run::hint;
use crate::arguments::RunArguments;
use crate::cells::{
    Budget, CellEnd, ErrorReport, Followed, Gallery, Report, Screen, follow, show_error,
};
use crate::failure;
use crate::home::Home;

/// How long the host may take to say why a sandbox ended.
const REASON_BOUND: Duration = Duration::from_secs(2);

/// The one object that `--json` prints.
#[derive(Serialize)]
struct RichReport<'a> {
    sandbox_id: &'a str,
    template: &'a str,
    isolation: Tier,
    isolation_reason: &'a str,
    outcome: &'a Outcome,
    exit_code: u8,
    stdout: &'a str,
    stderr: &'a str,
    results: serde_json::Value,
    error: Option<ErrorReport>,
    execution_count: Option<u64>,
    warnings: &'a [String],
    truncated_bytes: u64,
    duration_ms: u64,
    usage: &'a Stats,
}

/// What came of the cell.
struct Finished {
    followed: Followed,
    outcome: Outcome,
    stats: Stats,
    duration: Duration,
    report: Option<Report>,
}

pub(super) async fn run(
    home: &Home,
    arguments: &RunArguments,
    program: &Program,
) -> anyhow::Result<ExitCode> {
    let mut gallery = Gallery::open(arguments.output.as_deref())?;
    let mut interrupted = Interruption::listen()?;
    let opened = tokio::select! {
        opened = inputs::open(home, &arguments.sandbox, DEFAULT_CELL_TEMPLATE, arguments.lifetime()) => opened?,
        // The monitor notices that its client is gone and removes what it made.
        code = interrupted.next() => return Ok(code),
    };
    let finished = tokio::select! {
        finished = execute(&opened, arguments, program, &mut gallery) => finished,
        code = interrupted.next() => {
            opened.live.destroy().await.ok();
            return Ok(code);
        }
    };
    close(&opened).await?;
    finished?.show(&opened)
}

/// Removes the sandbox of a command that is through.
pub(super) async fn close(opened: &Opened) -> anyhow::Result<()> {
    match opened.live.destroy().await {
        // One that ended before its program left nothing to remove.
        Ok(_) | Err(SandboxError::Gone) => Ok(()),
        Err(error) => Err(error).context("the sandbox could not be removed completely"),
    }
}

async fn execute(
    opened: &Opened,
    arguments: &RunArguments,
    program: &Program,
    gallery: &mut Gallery,
) -> anyhow::Result<Finished> {
    let code = CodeToRun {
        text: String::from_utf8_lossy(&program.text).into_owned(),
        language: Some(program.language.name().to_owned()),
        ..CodeToRun::default()
    };
    let started = Instant::now();
    let deadline = tokio::time::Instant::now() + arguments.timeout;
    let mut budget = Budget::new(arguments.max_output);
    let guest = opened.live.guest();
    let (followed, report) = if arguments.json {
        let mut report = Report::default();
        let mut take = |event| {
            report.take(event, gallery);
            Ok(())
        };
        let followed = follow(guest, &code, deadline, &mut budget, &mut take).await?;
        (followed, Some(report))
    } else {
        let mut screen = Screen::new(gallery);
        let mut show = |event| screen.show(&event);
        let followed = follow(guest, &code, deadline, &mut budget, &mut show).await?;
        if io::stdout().is_terminal() {
            screen.end_line()?;
        }
        (followed, None)
    };
    let duration = started.elapsed();
    let stats = opened.live.stats().await.unwrap_or_default();
    let outcome = outcome(opened, &followed, &stats, arguments, &budget).await;
    Ok(Finished {
        followed,
        outcome,
        stats,
        duration,
        report,
    })
}

/// How a cell ended, by what the host saw.
pub(super) async fn outcome(
    opened: &Opened,
    followed: &Followed,
    stats: &Stats,
    arguments: &RunArguments,
    budget: &Budget,
) -> Outcome {
    let memory = Outcome::MemoryLimit {
        limit_mib: opened.limits.memory_mib,
    };
    match &followed.end {
        CellEnd::Over => match &followed.error {
            None => Outcome::Exited { code: 0 },
            // The kernel ended, and the host knows of what.
            Some(error) if error.is_state_lost() && stats.oom_kills > 0 => memory,
            Some(error) => Outcome::Exited {
                code: exit_code(error).into(),
            },
        },
        CellEnd::Timeout => Outcome::Timeout {
            limit_ms: u64::try_from(arguments.timeout.as_millis()).unwrap_or(u64::MAX),
        },
        CellEnd::TooMuchOutput => Outcome::OutputLimit {
            limit_bytes: budget.limit(),
        },
        // The guest is gone or lies: what the host saw counts.
        CellEnd::Lost(detail) => match opened.live.wait(REASON_BOUND).await {
            Ok(Some(outcome)) => outcome,
            _ if stats.oom_kills > 0 => memory,
            _ => Outcome::Crashed {
                detail: detail.clone(),
            },
        },
    }
}

/// The exit status that an error stands for: its own where code asked for one.
fn exit_code(error: &CodeError) -> u8 {
    let own = match error.name.as_str() {
        // `sys.exit()` without a number is success.
        "SystemExit" if matches!(error.value.as_str(), "" | "None") => Some(0),
        "SystemExit" | "ExitStatus" => error.value.trim().parse::<i64>().ok(),
        _ => None,
    };
    match own {
        Some(code) => u8::try_from(code & 0xff).unwrap_or(1),
        None => 1,
    }
}

/// The exit status of an outcome of cells.
pub(super) fn status(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Exited { code } => u8::try_from(*code).unwrap_or(1),
        Outcome::Timeout { .. } => 124,
        Outcome::MemoryLimit { .. } => 137,
        Outcome::OutputLimit { .. } => 1,
        _ => failure::OWN_FAILURE,
    }
}

/// Says what ended cells, where it was not their own code.
pub(super) fn explain(outcome: &Outcome) {
    if matches!(outcome, Outcome::Exited { .. }) {
        return;
    }
    eprintln!("atoll: {outcome}");
    if let Some(hint) = hint(outcome) {
        eprintln!("hint: {hint}");
    }
}

impl Finished {
    fn show(self, opened: &Opened) -> anyhow::Result<ExitCode> {
        let exit_code = status(&self.outcome);
        let error = self.followed.error.as_ref();
        let Some(report) = &self.report else {
            // Who asked for an exit status needs no traceback.
            if let Some(error) = error
                && error.name != "SystemExit"
            {
                show_error(error);
            }
            explain(&self.outcome);
            return Ok(ExitCode::from(exit_code));
        };
        let report = RichReport {
            sandbox_id: opened.live.sandbox().id().as_str(),
            template: opened.template.name.as_str(),
            isolation: opened.isolation.tier,
            isolation_reason: &opened.isolation.reason,
            outcome: &self.outcome,
            exit_code,
            stdout: &report.stdout,
            stderr: &report.stderr,
            results: serde_json::to_value(&report.results)?,
            error: error.map(ErrorReport::from),
            execution_count: self.followed.execution_count,
            warnings: &report.warnings,
            truncated_bytes: report.truncated_bytes,
            duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            usage: &self.stats,
        };
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
        Ok(ExitCode::from(exit_code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_status_that_its_code_asked_for() {
        for (name, value, expected) in [
            ("SystemExit", "3", 3),
            ("SystemExit", "-1", 255),
            ("SystemExit", "", 0),
            ("SystemExit", "None", 0),
            ("SystemExit", "a message", 1),
            ("ExitStatus", "127", 127),
            ("ValueError", "0", 1),
        ] {
            let error = CodeError {
                name: name.to_owned(),
                value: value.to_owned(),
                traceback: String::new(),
            };
            assert_eq!(exit_code(&error), expected, "{name} {value}");
        }
    }
}
