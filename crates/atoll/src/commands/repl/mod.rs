//! `atoll repl`: cells that somebody types, in one kernel of a fresh sandbox.
//!
//! ```text
//! typist (a terminal, or standard input) ── Typed ──▶ repl ──▶ follow ──▶ Screen
//!    └ completeness: is this a whole cell?             └ Ctrl-C drops the cell, the kernel stays
//! ```

mod completeness;
mod typist;

use std::process::ExitCode;
use std::time::Duration;

use atoll_guest_client::CodeToRun;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::typist::{Order, Typed, Typist};
use super::inputs::{self, DEFAULT_CELL_TEMPLATE, Opened};
use super::run_rich::close;
use crate::arguments::ReplArguments;
use crate::cells::{Budget, CellEnd, Gallery, Screen, follow, show_error};
use crate::home::Home;

/// How long the host may take to say why a sandbox ended.
const REASON_BOUND: Duration = Duration::from_secs(2);

const HELP: &str = "\
a cell runs once it is whole; a block ends with an empty line
Ctrl-C    interrupts the cell that runs, and keeps what was defined
Ctrl-D    ends, and removes the sandbox
:restart  begins with an empty kernel
:quit     ends as well";

/// How one cell went.
enum Verdict {
    Fine,
    Failed,
    /// There is no sandbox any more.
    Over,
}

/// Signals that ask it to end, and the one that interrupts a cell.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn end(&mut self) -> ExitCode {
        end(&mut self.terminate, &mut self.hang_up).await
    }

    async fn interrupt_or_end(&mut self) -> ExitCode {
        tokio::select! {
            _ = self.interrupt.recv() => ExitCode::from(130),
            code = end(&mut self.terminate, &mut self.hang_up) => code,
        }
    }
}

pub(crate) async fn repl(home: &Home, arguments: &ReplArguments) -> anyhow::Result<ExitCode> {
    let mut gallery = Gallery::open(arguments.output.as_deref())?;
    let mut signals = Signals::listen()?;
    let _terminal = TerminalMode::remember();
    let opened = tokio::select! {
        opened = inputs::open(
            home,
            &arguments.sandbox,
            DEFAULT_CELL_TEMPLATE,
            arguments.timeout,
        ) => opened?,
        // The monitor notices that its client is gone and removes what it made.
        code = signals.interrupt_or_end() => return Ok(code),
    };
    let mut typist = Typist::new(&arguments.lang, home.path())?;
    if typist.is_person() {
        eprintln!(
            "{} in a fresh sandbox ({}, {}); Ctrl-D ends it, :help says more",
            arguments.lang, opened.template.name, opened.isolation.tier
        );
    }
    let mut session = Session {
        opened: &opened,
        arguments,
        gallery: &mut gallery,
        signals,
        has_failed: false,
    };
    let ended = session.converse(&mut typist).await;
    let closed = close(&opened).await;
    let code = ended?;
    closed?;
    Ok(code)
}

struct Session<'a> {
    opened: &'a Opened,
    arguments: &'a ReplArguments,
    gallery: &'a mut Gallery,
    signals: Signals,
    has_failed: bool,
}

impl Session<'_> {
    async fn converse(&mut self, typist: &mut Typist) -> anyhow::Result<ExitCode> {
        loop {
            // On a terminal, Ctrl-C at the prompt is a key and clears the line.
            let typed = if typist.is_person() {
                tokio::select! {
                    typed = typist.next() => typed?,
                    code = self.signals.end() => return Ok(code),
                }
            } else {
                tokio::select! {
                    typed = typist.next() => typed?,
                    code = self.signals.interrupt_or_end() => return Ok(code),
                }
            };
            let verdict = match typed {
                Typed::Cell(text) => tokio::select! {
                    verdict = run(
                        self.opened,
                        self.arguments,
                        self.gallery,
                        &mut self.signals.interrupt,
                        text,
                    ) => verdict?,
                    code = end(&mut self.signals.terminate, &mut self.signals.hang_up) => {
                        return Ok(code);
                    }
                },
                Typed::Order(Order::Help) => {
                    eprintln!("{HELP}");
                    continue;
                }
                Typed::Order(Order::Restart) => {
                    self.restart().await?;
                    continue;
                }
                Typed::Order(Order::Quit) | Typed::End => break,
            };
            match verdict {
                Verdict::Fine => {}
                Verdict::Failed => self.has_failed = true,
                Verdict::Over => return Ok(ExitCode::from(crate::failure::OWN_FAILURE)),
            }
        }
        // A person has seen what failed; whoever sent a program has not.
        if self.has_failed && !typist.is_person() {
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn restart(&self) -> anyhow::Result<()> {
        let guest = self.opened.live.guest();
        let contexts = guest.list_contexts().await?;
        let lang = self.arguments.lang.as_str();
        let context = contexts.iter().find(|context| context.language == lang);
        if let Some(context) = context {
            guest.restart_context(&context.id).await?;
        }
        eprintln!("a new kernel; nothing is defined");
        Ok(())
    }
}

async fn end(terminate: &mut Signal, hang_up: &mut Signal) -> ExitCode {
    tokio::select! {
        _ = terminate.recv() => ExitCode::from(143),
        _ = hang_up.recv() => ExitCode::from(129),
    }
}

async fn run(
    opened: &Opened,
    arguments: &ReplArguments,
    gallery: &mut Gallery,
    interrupt: &mut Signal,
    text: String,
) -> anyhow::Result<Verdict> {
    let code = CodeToRun {
        text,
        language: Some(arguments.lang.as_str().to_owned()),
        ..CodeToRun::default()
    };
    let mut budget = Budget::new(arguments.max_output);
    // The sandbox ends before that, and the cell with it.
    let deadline = tokio::time::Instant::now() + arguments.timeout + REASON_BOUND;
    let mut screen = Screen::new(gallery);
    let guest = opened.live.guest();
    let followed = {
        let mut show = |event| screen.show(&event);
        tokio::select! {
            followed = follow(guest, &code, deadline, &mut budget, &mut show) => Some(followed),
            // Whoever drops a cell interrupts it.
            _ = interrupt.recv() => None,
        }
    };
    screen.end_line()?;
    let followed = match followed {
        None => {
            eprintln!("interrupted; what was defined is still there");
            return Ok(Verdict::Failed);
        }
        // No kernel for it: there is nothing to go on with.
        Some(followed) => followed?,
    };
    if let Some(error) = &followed.error {
        show_error(error);
        if error.is_state_lost() {
            eprintln!("atoll: the kernel ended; what was defined is lost");
        }
    }
    match followed.end {
        CellEnd::Over if followed.error.is_none() => Ok(Verdict::Fine),
        CellEnd::Over => Ok(Verdict::Failed),
        CellEnd::TooMuchOutput => {
            eprintln!(
                "atoll: the cell printed more than {} and was interrupted",
                crate::quantity::show_bytes(budget.limit())
            );
            eprintln!("hint: allow more with --max-output");
            Ok(Verdict::Failed)
        }
        CellEnd::Timeout | CellEnd::Lost(_) => match opened.live.wait(REASON_BOUND).await {
            Ok(Some(outcome)) => {
                eprintln!("atoll: the sandbox has ended: {outcome}");
                Ok(Verdict::Over)
            }
            _ => {
                eprintln!("atoll: the connection to the cell broke; what was defined may be lost");
                Ok(Verdict::Failed)
            }
        },
    }
}

/// The mode of the user's terminal, as it was when dropped: a signal can end
/// this while a line is being edited.
struct TerminalMode(Option<Termios>);

impl TerminalMode {
    fn remember() -> Self {
        Self(tcgetattr(std::io::stdin()).ok())
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
