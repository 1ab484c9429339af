//! `atoll run notebook.ipynb`: all code cells in their order, in one kernel
//! of a fresh sandbox, and their outputs back into the notebook.
//!
//! What the notebook holds afterwards is of this run alone: cells that did
//! not run have no outputs. It is written once, at the end; a run that is
//! broken off leaves it as it was.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_engine::{Outcome, Tier};
use atoll_guest_client::{CodeError, CodeToRun};
use serde::Serialize;

use super::inputs::{self, DEFAULT_CELL_TEMPLATE, Opened};
use super::interruption::Interruption;
use super::run_rich::{close, explain, outcome, status};
use crate::arguments::RunArguments;
use crate::cells::{Budget, CellEnd, ErrorReport, Followed, Language, follow, show_error};
use crate::failure::Hinted;
use crate::home::Home;
use crate::notebook::{
    CellOutcome, CodeCell, Notebook, NotebookError, NotebookFile, Outputs, replace,
};
use crate::terminal::Progress;

/// Longest first line of a cell that is shown.
const TITLE_CHARS_MAX: usize = 60;

/// The one object that `--json` prints.
#[derive(Serialize)]
struct NotebookReport<'a> {
    sandbox_id: &'a str,
    template: &'a str,
    isolation: Tier,
    isolation_reason: &'a str,
    language: &'a str,
    outcome: &'a Outcome,
    exit_code: u8,
    /// The file that was written.
    notebook: &'a Path,
    cells: &'a [CellReport],
    duration_ms: u64,
}

/// What came of one cell.
#[derive(Serialize)]
struct CellReport {
    /// Its place in the notebook, from one on.
    number: usize,
    status: CellStatus,
    execution_count: Option<u64>,
    error: Option<ErrorReport>,
    duration_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CellStatus {
    Ok,
    Error,
    /// It has no code, or one before it failed.
    Skipped,
}

/// What came of a notebook.
struct Finished {
    outcomes: Vec<CellOutcome>,
    cells: Vec<CellReport>,
    outcome: Outcome,
    duration: Duration,
}

pub(super) async fn run(
    home: &Home,
    arguments: &RunArguments,
    path: &Path,
) -> anyhow::Result<ExitCode> {
    let file = NotebookFile::read(path)?;
    let notebook =
        Notebook::parse(file.text().to_owned()).map_err(|error| unreadable(path, &error))?;
    let target = target(arguments)?;
    let mut interrupted = Interruption::listen()?;
    let opened = tokio::select! {
        opened = inputs::open(home, &arguments.sandbox, DEFAULT_CELL_TEMPLATE, arguments.lifetime()) => opened?,
        // The monitor notices that its client is gone and removes what it made.
        code = interrupted.next() => return Ok(code),
    };
    let language = match arguments.lang {
        Some(lang) => lang
            .name()
            .parse()
            .unwrap_or_else(|_| notebook.language.clone()),
        None => notebook.language.clone(),
    };
    let finished = tokio::select! {
        finished = execute(&opened, arguments, &notebook, &language) => finished,
        code = interrupted.next() => {
            opened.live.destroy().await.ok();
            eprintln!("interrupted; `{}` is as it was", path.display());
            return Ok(code);
        }
    };
    close(&opened).await?;
    let finished = finished?;
    let text = notebook.with_outcomes(&finished.outcomes);
    match &target {
        Some(target) => replace(target, &text)?,
        None => file.replace(&text)?,
    }
    finished.show(
        &opened,
        arguments,
        &language,
        target.as_deref().unwrap_or(path),
    )
}

fn unreadable(path: &Path, error: &NotebookError) -> anyhow::Error {
    let what = format!("cannot run the notebook `{}`: {error}", path.display());
    Hinted::error(what, error.hint())
}

/// The file to write, if it is another one; looked at before anything runs.
fn target(arguments: &RunArguments) -> anyhow::Result<Option<PathBuf>> {
    let Some(target) = &arguments.output else {
        return Ok(None);
    };
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if target.is_dir() || parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(Hinted::error(
            format!("cannot write a notebook to `{}`", target.display()),
            "for a notebook, --output names a file in a directory that is there",
        ));
    }
    Ok(Some(target.clone()))
}

async fn execute(
    opened: &Opened,
    arguments: &RunArguments,
    notebook: &Notebook,
    language: &Language,
) -> anyhow::Result<Finished> {
    let started = Instant::now();
    let deadline = tokio::time::Instant::now() + arguments.timeout;
    let mut budget = Budget::new(arguments.max_output);
    let mut progress = Progress::new();
    let mut finished = Finished {
        outcomes: Vec::new(),
        cells: Vec::new(),
        outcome: Outcome::Exited { code: 0 },
        duration: Duration::ZERO,
    };
    let mut is_over = false;
    for cell in &notebook.cells {
        if is_over || cell.source.trim().is_empty() {
            finished.skip(cell);
            continue;
        }
        let title = title(cell, notebook.cells.len());
        progress.now(&title);
        let begun = Instant::now();
        let code = CodeToRun {
            text: cell.source.clone(),
            language: Some(language.as_str().to_owned()),
            ..CodeToRun::default()
        };
        let mut outputs = Outputs::default();
        let mut take = |event| {
            outputs.take(event);
            Ok(())
        };
        let guest = opened.live.guest();
        let followed = follow(guest, &code, deadline, &mut budget, &mut take).await?;
        let stats = opened.live.stats().await.unwrap_or_default();
        let ended = outcome(opened, &followed, &stats, arguments, &budget).await;
        if !matches!(followed.end, CellEnd::Over) {
            outputs.error(CodeError {
                name: "CellEnded".to_owned(),
                value: ended.to_string(),
                traceback: ended.to_string(),
            });
        }
        let seconds = begun.elapsed().as_secs_f32();
        if !arguments.json {
            let mark = if followed.is_success() {
                ""
            } else {
                ", failed"
            };
            progress.line(&format!("{title}: {seconds:.1} s{mark}"));
            if let Some(error) = &followed.error {
                progress.pause(|| show_error(error));
            }
        }
        if !followed.is_success() {
            finished.outcome = ended;
            is_over = !arguments.keep_going || !matches!(followed.end, CellEnd::Over);
        }
        finished.add(cell, &followed, outputs, begun.elapsed());
    }
    drop(progress);
    finished.duration = started.elapsed();
    Ok(finished)
}

/// A cell in one line.
fn title(cell: &CodeCell, count: usize) -> String {
    let mut lines = cell.source.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
    let first: String = first.chars().take(TITLE_CHARS_MAX).collect();
    let first = crate::terminal::harmless(&first);
    format!("[cell {} of {count} with code] {first}", cell.number)
}

impl Finished {
    fn skip(&mut self, cell: &CodeCell) {
        self.outcomes.push(CellOutcome::default());
        self.cells.push(CellReport {
            number: cell.number,
            status: CellStatus::Skipped,
            execution_count: None,
            error: None,
            duration_ms: 0,
        });
    }

    fn add(&mut self, cell: &CodeCell, followed: &Followed, outputs: Outputs, took: Duration) {
        self.outcomes.push(CellOutcome {
            execution_count: followed.execution_count,
            outputs: outputs.into_values(),
        });
        self.cells.push(CellReport {
            number: cell.number,
            status: if followed.is_success() {
                CellStatus::Ok
            } else {
                CellStatus::Error
            },
            execution_count: followed.execution_count,
            error: followed.error.as_ref().map(ErrorReport::from),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        });
    }

    fn show(
        &self,
        opened: &Opened,
        arguments: &RunArguments,
        language: &Language,
        written: &Path,
    ) -> anyhow::Result<ExitCode> {
        let exit_code = status(&self.outcome);
        if arguments.json {
            let report = NotebookReport {
                sandbox_id: opened.live.sandbox().id().as_str(),
                template: opened.template.name.as_str(),
                isolation: opened.isolation.tier,
                isolation_reason: &opened.isolation.reason,
                language: language.as_str(),
                outcome: &self.outcome,
                exit_code,
                notebook: written,
                cells: &self.cells,
                duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            };
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            explain(&self.outcome);
            let count = |status| {
                let cells = self.cells.iter();
                cells.filter(|cell| cell.status == status).count()
            };
            eprintln!(
                "wrote {}: {} cells ran, {} failed, {} did not run",
                written.display(),
                count(CellStatus::Ok),
                count(CellStatus::Error),
                count(CellStatus::Skipped),
            );
        }
        Ok(ExitCode::from(exit_code))
    }
}
