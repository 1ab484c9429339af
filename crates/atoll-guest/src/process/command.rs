//! One command from its start to its end: output to whoever follows it,
//! input, and the one task that watches over it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_protocol::OUTPUT_CHUNK_BYTES;
use atoll_protocol::envd::process::ProcessConfig;
use atoll_protocol::status::ExitStatus;
use bytes::Bytes;
use rustix::process::Signal;
use rustix::termios::Winsize;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::audience::{Audience, End, Following, Output, Role};
use super::launch::{Ends, Launched, Reports};
use super::reaper::Report;
use super::stream::Stream;
use super::tree;
use crate::boot;

/// Largest piece of a terminal's output, in bytes.
const TERMINAL_CHUNK_BYTES: usize = 16 * 1024;

/// After the command's own end, silence that lasts this long is taken for
/// the end of its output, though a background process may hold the pipe.
const TRAILING_SILENCE: Duration = Duration::from_millis(200);

/// How long a reaper may take to tell the end of a command that was killed.
const REPORT_BOUND: Duration = Duration::from_secs(2);

/// What one pipe can hold at most. What is read beyond it after the
/// command's end was written by somebody else.
const PIPE_BYTES_MAX: usize = 1024 * 1024;

/// Where a source's bytes come out.
type Wrap = fn(Bytes) -> Output;

/// A command.
#[derive(Debug)]
pub(crate) struct Command {
    /// Only asked for while it runs.
    config: Mutex<Arc<ProcessConfig>>,
    tag: Option<String>,
    pid: i32,
    reaper: i32,
    input: Input,
    audience: Arc<Audience>,
    exited: watch::Sender<bool>,
}

#[derive(Debug)]
enum Input {
    None,
    Pipe(AsyncMutex<Option<Stream>>),
    Terminal {
        master: Arc<Stream>,
        order: AsyncMutex<()>,
    },
}

/// Why input or a new size did not reach a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// It was started without an input pipe, or it is closed.
    #[error("stdin is not enabled or was closed")]
    NoStdin,
    /// It has pipes.
    #[error("the process has no terminal")]
    NoTerminal,
    /// It has a terminal, whose input cannot be closed.
    #[error("cannot close the input of a terminal: send Ctrl-D (0x04) instead")]
    CannotClose,
    /// It ended.
    #[error("the process has ended")]
    Ended,
    /// Not all of it could be ended.
    #[error("some processes have been killed and do not end: they wait for the kernel")]
    Remains,
    /// The kernel refused.
    #[error("error writing to the process: {0}")]
    Write(#[from] io::Error),
}

impl Command {
    /// Takes over a launched command; the receiver sees all of its events.
    pub(crate) fn adopt(
        launched: Launched,
        config: ProcessConfig,
        tag: Option<String>,
        deadline: Option<Instant>,
    ) -> (Arc<Self>, Following) {
        let Launched {
            pid,
            reaper,
            reports,
            ends,
        } = launched;
        let (input, sources): (_, Vec<(Arc<Stream>, usize, Wrap)>) = match ends {
            Ends::Terminal(master) => {
                let master = Arc::new(master);
                let input = Input::Terminal {
                    master: Arc::clone(&master),
                    order: AsyncMutex::default(),
                };
                (
                    input,
                    vec![(master, TERMINAL_CHUNK_BYTES, Output::Terminal)],
                )
            }
            Ends::Pipes {
                stdin,
                stdout,
                stderr,
            } => (
                stdin.map_or(Input::None, |stdin| {
                    Input::Pipe(AsyncMutex::new(Some(stdin)))
                }),
                vec![
                    (Arc::new(stdout), OUTPUT_CHUNK_BYTES, Output::Stdout),
                    (Arc::new(stderr), OUTPUT_CHUNK_BYTES, Output::Stderr),
                ],
            ),
        };
        let audience = Audience::new();
        let following = audience.join(Role::Starter);
        let command = Arc::new(Self {
            config: Mutex::new(Arc::new(config)),
            tag,
            pid,
            reaper,
            input,
            audience,
            exited: watch::Sender::new(false),
        });
        tokio::spawn(watch_over(Arc::clone(&command), reports, sources, deadline));
        (command, following)
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// How it was started.
    pub(crate) fn config(&self) -> Arc<ProcessConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The name its starter gave it.
    pub(crate) fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Whether it has exited. Its pid may be another process's then.
    pub(crate) fn has_exited(&self) -> bool {
        *self.exited.borrow()
    }

    /// Waits until it has exited.
    pub(crate) async fn exited(&self) {
        // The sender lives as long as `self`.
        let _ = self.exited.subscribe().wait_for(|exited| *exited).await;
    }

    /// Follows it from now on; when it has ended, the end comes at once.
    pub(crate) fn follow(&self) -> Following {
        self.audience.join(Role::Visitor)
    }

    /// Sends a signal to the one process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), InputError> {
        if self.has_exited() {
            return Err(InputError::Ended);
        }
        tree::send(self.pid, signal);
        Ok(())
    }

    /// Ends it and everything it started.
    pub(crate) async fn kill_tree(&self) -> Result<(), InputError> {
        if self.has_exited() {
            return Err(InputError::Ended);
        }
        if tree::kill_command(self.reaper, self.pid).await {
            Ok(())
        } else {
            Err(InputError::Remains)
        }
    }

    /// Writes to its input pipe and waits until all is written.
    pub(crate) async fn write_stdin(&self, bytes: &[u8]) -> Result<(), InputError> {
        let Input::Pipe(stdin) = &self.input else {
            return Err(InputError::NoStdin);
        };
        let write = async {
            let stdin = stdin.lock().await;
            stdin
                .as_ref()
                .ok_or(InputError::NoStdin)?
                .write_all(bytes)
                .await
                .map_err(InputError::Write)
        };
        self.unless_ended(write).await
    }

    /// Writes to its terminal and waits until all is written.
    pub(crate) async fn write_terminal(&self, bytes: &[u8]) -> Result<(), InputError> {
        let Input::Terminal { master, order } = &self.input else {
            return Err(InputError::NoTerminal);
        };
        let write = async {
            let _in_order = order.lock().await;
            master.write_all(bytes).await.map_err(InputError::Write)
        };
        self.unless_ended(write).await
    }

    /// Closes its input pipe after what was written before.
    pub(crate) async fn close_stdin(&self) -> Result<(), InputError> {
        match &self.input {
            Input::None => Err(InputError::NoStdin),
            Input::Terminal { .. } => Err(InputError::CannotClose),
            Input::Pipe(stdin) => {
                self.unless_ended(async {
                    drop(stdin.lock().await.take());
                    Ok(())
                })
                .await
            }
        }
    }

    /// Changes the size of its terminal.
    pub(crate) fn resize(&self, size: Winsize) -> Result<(), InputError> {
        let Input::Terminal { master, .. } = &self.input else {
            return Err(InputError::NoTerminal);
        };
        rustix::termios::tcsetwinsize(master.fd(), size)
            .map_err(|error| InputError::Write(error.into()))?;
        if boot::is_on_gvisor() {
            // Its kernel neither tells whoever is in the foreground, as Linux does, nor says
            // who that is. Who does not care ignores it.
            tokio::spawn(tree::tell_session(self.pid, Signal::WINCH));
        }
        Ok(())
    }

    /// Gives up on `work` when the command ends: a background process may
    /// hold the other end without ever reading.
    async fn unless_ended(
        &self,
        work: impl Future<Output = Result<(), InputError>>,
    ) -> Result<(), InputError> {
        tokio::select! {
            biased;
            () = self.exited() => Err(InputError::Ended),
            done = work => done,
        }
    }
}

/// The one task that watches over a command.
async fn watch_over(
    command: Arc<Command>,
    mut reports: Reports,
    sources: Vec<(Arc<Stream>, usize, Wrap)>,
    deadline: Option<Instant>,
) {
    let pumps: Vec<_> = sources
        .into_iter()
        .map(|(source, chunk, wrap)| {
            let (done, finished) = tokio::sync::oneshot::channel::<()>();
            tokio::spawn(pump(
                Arc::clone(&command),
                source,
                chunk,
                wrap,
                command.exited.subscribe(),
                done,
            ));
            finished
        })
        .collect();

    let at_deadline = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let (report, end): (_, fn(ExitStatus) -> End) = tokio::select! {
        biased;
        report = reports.next() => (report, End::Own),
        () = at_deadline => {
            tree::kill_command(command.reaper, command.pid).await;
            // Whoever traces a process hides its end from everybody else.
            let report = timeout(REPORT_BOUND, reports.next()).await;
            let report = report.unwrap_or(Some(Report::Signaled { signal: libc::SIGKILL }));
            (report, End::Deadline)
        }
    };
    let status = match report {
        Some(Report::Exited { code }) => ExitStatus::Exited(code),
        Some(Report::Signaled { signal }) => ExitStatus::Signaled(signal),
        // Somebody inside killed the reaper: what it watched goes too.
        Some(Report::Taken | Report::Started { .. } | Report::Failed { .. }) | None => {
            tree::kill_from(command.pid).await;
            ExitStatus::Signaled(libc::SIGKILL)
        }
    };
    command.exited.send_replace(true);
    for pump in pumps {
        // Either way its output is over.
        let _ = pump.await;
    }
    *command
        .config
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Arc::default();
    command.audience.end(end(status));
}

/// Moves one source's bytes to the followers until it ends or the command
/// has ended and is silent; from then on bytes are read and dropped, so that
/// a background process that still writes is not killed by a closed pipe.
async fn pump(
    command: Arc<Command>,
    source: Arc<Stream>,
    chunk: usize,
    wrap: Wrap,
    mut exited: watch::Receiver<bool>,
    done: tokio::sync::oneshot::Sender<()>,
) {
    let mut buffer = vec![0; chunk];
    let mut trailing = 0;
    loop {
        let read = if *exited.borrow() {
            timeout(TRAILING_SILENCE, source.read(&mut buffer))
                .await
                .ok()
        } else {
            tokio::select! {
                biased;
                read = source.read(&mut buffer) => Some(read),
                _ = exited.changed() => continue,
            }
        };
        match read {
            Some(Ok(Some(bytes))) => {
                if *exited.borrow() {
                    trailing += bytes.len();
                }
                command.audience.hear(&wrap(bytes), &exited).await;
                if trailing > PIPE_BYTES_MAX {
                    break;
                }
            }
            Some(Ok(None) | Err(_)) => return,
            None => break,
        }
    }
    drop(done);
    drop(command);
    while let Ok(Some(_)) = source.read(&mut buffer).await {}
}
