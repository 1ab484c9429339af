//! Commands: start and events.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_protocol::envd::process::{
    ConnectRequest, PTY, ProcessConfig, StartRequest, StartResponse, process_event, pty,
};
use atoll_protocol::envd::process_oneof::{Event, Output};
use atoll_protocol::status::ExitStatus;
use buffa::Message;
use bytes::Bytes;
use tokio::time::timeout;

use crate::answer::ANSWER_BOUND;
use crate::client::GuestClient;
use crate::error::GuestError;
use crate::input::{ProcessInput, Target, selector};
use crate::messages::MessageStream;
use crate::moment::from_now;

/// Longest timeout that the protocol can carry.
const TIMEOUT_MILLIS_MAX: u128 = 9_999_999_999;

/// What to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// Program; looked up in `PATH` when it has no slash.
    pub cmd: String,
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// Variables that win over the sandbox's.
    pub envs: BTreeMap<String, String>,
    /// Directory to start in; the sandbox's default when absent.
    pub cwd: Option<String>,
    /// Whose rights it has; the sandbox's default user when absent.
    pub user: Option<String>,
    /// A terminal instead of pipes.
    pub pty: Option<PtySize>,
    /// Whether it gets an input pipe; `/dev/null` otherwise.
    pub stdin: bool,
    /// When it is ended with everything it started.
    pub timeout: Option<Duration>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    /// Characters per line.
    pub cols: u16,
    /// Lines.
    pub rows: u16,
}

impl From<PtySize> for PTY {
    fn from(PtySize { cols, rows }: PtySize) -> Self {
        let size = pty::Size {
            cols: cols.into(),
            rows: rows.into(),
            ..Default::default()
        };
        Self {
            size: size.into(),
            ..Default::default()
        }
    }
}

/// What happens to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// Terminal output.
    Pty(Bytes),
    /// It ended; nothing follows.
    End(ExitStatus),
}

/// A command that was started. Dropping it does not end the command.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    events: EventStream,
    input: ProcessInput,
}

impl GuestClient {
    /// Starts a command and waits until it runs.
    ///
    /// # Errors
    /// When it cannot be started, or the guest misbehaves.
    pub async fn start(&self, command: &Command) -> Result<Process, GuestError> {
        let message = StartRequest {
            process: ProcessConfig {
                cmd: command.cmd.clone(),
                args: command.args.clone(),
                envs: command.envs.clone().into_iter().collect(),
                cwd: command.cwd.clone(),
                ..Default::default()
            }
            .into(),
            pty: command.pty.map(PTY::from).into(),
            stdin: Some(command.stdin),
            ..Default::default()
        };
        let target = if command.pty.is_some() {
            Target::Terminal
        } else {
            Target::Stdin
        };
        let user = command.user.as_deref();
        self.open(
            "/process.Process/Start",
            &message,
            user,
            command.timeout,
            target,
        )
        .await
    }

    /// Follows a command that runs already, from now on. Its input is taken
    /// for a pipe.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is no such command.
    pub async fn follow(&self, pid: u32) -> Result<Process, GuestError> {
        let message = ConnectRequest {
            process: selector(pid).into(),
            ..Default::default()
        };
        self.open(
            "/process.Process/Connect",
            &message,
            None,
            None,
            Target::Stdin,
        )
        .await
    }

    async fn open<M: Message>(
        &self,
        method: &str,
        message: &M,
        user: Option<&str>,
        limit: Option<Duration>,
        target: Target,
    ) -> Result<Process, GuestError> {
        let mut headers = Vec::new();
        if let Some(limit) = limit {
            let millis = limit.as_millis().clamp(1, TIMEOUT_MILLIS_MAX);
            headers.push(("connect-timeout-ms", millis.to_string()));
        }
        let deadline = limit.map(from_now);
        let answer = self.stream(method, message, user, headers).await?;
        let mut events = EventStream {
            messages: MessageStream::open(answer, self.silence(), deadline).await?,
            ended: false,
        };
        let first =
            timeout(ANSWER_BOUND, events.next())
                .await
                .map_err(|_| GuestError::Timeout {
                    what: "start the command",
                    bound: ANSWER_BOUND,
                })??;
        let Some(Event::Start(start)) = first else {
            return Err(GuestError::Protocol(
                "the first event of a command is not its start".to_owned(),
            ));
        };
        if start.pid == 0 {
            return Err(GuestError::Protocol("a command has no pid".to_owned()));
        }
        let input = ProcessInput::new(self.clone(), start.pid, target);
        Ok(Process {
            pid: start.pid,
            events,
            input,
        })
    }
}

impl Process {
    /// Its pid inside the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A handle for its input, signals and terminal size.
    #[must_use]
    pub fn input(&self) -> ProcessInput {
        self.input.clone()
    }

    /// Its next event; `None` after its end. Safe to cancel.
    ///
    /// # Errors
    /// [`GuestError::DeadlineExceeded`] when it reached its timeout; others
    /// when the guest misbehaves or is gone. Nothing follows an error.
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>, GuestError> {
        loop {
            let event = match self.events.next().await? {
                None => return Ok(None),
                Some(Event::Keepalive(_)) => continue,
                Some(Event::Start(_)) => return Err(self.events.broken("a command started twice")),
                Some(Event::Data(data)) => match data.output {
                    Some(Output::Stdout(bytes)) => ProcessEvent::Stdout(bytes.into()),
                    Some(Output::Stderr(bytes)) => ProcessEvent::Stderr(bytes.into()),
                    Some(Output::Pty(bytes)) => ProcessEvent::Pty(bytes.into()),
                    None => continue,
                },
                Some(Event::End(end)) => {
                    let process_event::EndEvent {
                        exit_code,
                        exited,
                        status,
                        ..
                    } = *end;
                    let status = ExitStatus::parse(exit_code, exited, &status);
                    ProcessEvent::End(
                        status.ok_or_else(|| {
                            self.events.broken("a command ended without a status")
                        })?,
                    )
                }
            };
            return Ok(Some(event));
        }
    }
}

/// Events of one command.
#[derive(Debug)]
struct EventStream {
    messages: MessageStream,
    /// Whether the command has ended.
    ended: bool,
}

impl EventStream {
    /// The next event; `None` after the last frame.
    async fn next(&mut self) -> Result<Option<Event>, GuestError> {
        loop {
            let Some(message) = self.messages.next::<StartResponse>().await? else {
                return Ok(None);
            };
            // Events that this version does not know are none.
            let Some(event) = message.event.into_option().and_then(|event| event.event) else {
                continue;
            };
            if self.ended {
                return Err(self.broken("an event follows a command's end"));
            }
            self.ended = matches!(event, Event::End(_));
            return Ok(Some(event));
        }
    }

    fn broken(&mut self, what: &str) -> GuestError {
        self.messages.broken(what)
    }
}
