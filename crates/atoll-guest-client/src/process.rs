//! Commands: start, events, input.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_protocol::connect::{EndOfStream, FLAG_END_OF_STREAM, Frame, FrameDecoder, encode_frame};
use atoll_protocol::envd::process::{
    CloseStdinRequest, ConnectRequest, PTY, ProcessConfig, ProcessInput as InputMessage,
    ProcessSelector, SendInputRequest, SendSignalRequest, Signal as SignalMessage, StartRequest,
    StartResponse, UpdateRequest, process_event, pty,
};
use atoll_protocol::envd::process_oneof::{Event, Input, Output, Selector};
use atoll_protocol::status::ExitStatus;
use atoll_protocol::{KEEPALIVE_HEADER, SIGNAL_SCOPE_HEADER, SIGNAL_SCOPE_TREE};
use buffa::Message;
use bytes::Bytes;
use http::{Method, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::client::{GuestClient, Patience, add_headers, full};
use crate::connection::{ANSWER_BOUND, Driver};
use crate::error::GuestError;

const STREAM_TYPE: &str = "application/connect+proto";

/// Longest frame of an answer, in bytes.
const FRAME_BYTES_MAX: usize = 1024 * 1024;

/// Most input in one request, in bytes.
const INPUT_BYTES_MAX: usize = 1024 * 1024;

/// Longest timeout that the protocol can carry.
const TIMEOUT_MILLIS_MAX: u128 = 9_999_999_999;

/// What the guest may take beyond a command's timeout to end all of it.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

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

/// Signals that a command can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM`.
    Terminate,
    /// `SIGKILL`.
    Kill,
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
        let body = full(encode_frame(0, &message.encode_to_vec())?);
        let mut request = self.request(Method::POST, method, user, STREAM_TYPE, body)?;
        let keepalive = (self.silence().as_secs() / 3).max(1);
        let mut headers = vec![(KEEPALIVE_HEADER, keepalive.to_string())];
        if let Some(limit) = limit {
            let millis = limit.as_millis().clamp(1, TIMEOUT_MILLIS_MAX);
            headers.push(("connect-timeout-ms", millis.to_string()));
        }
        add_headers(&mut request, &headers)?;

        let deadline = limit.map(|limit| Instant::now() + limit);
        let answer = self.ask(request).await?.success().await?;
        let content_type = answer.response.headers().get(header::CONTENT_TYPE);
        if content_type.is_none_or(|content_type| content_type != STREAM_TYPE) {
            return Err(GuestError::Protocol(
                "a stream has another content type than asked for".to_owned(),
            ));
        }
        let (body, driver) = answer.into_body();
        let mut events = EventStream {
            body,
            decoder: FrameDecoder::new(FRAME_BYTES_MAX),
            silence: self.silence(),
            deadline,
            grace: TIMEOUT_GRACE,
            over: false,
            _driver: driver,
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
        let input = ProcessInput {
            client: self.clone(),
            pid: start.pid,
            target,
        };
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

/// Events as they come off the wire.
#[derive(Debug)]
struct EventStream {
    body: Incoming,
    decoder: FrameDecoder,
    silence: Duration,
    deadline: Option<Instant>,
    grace: Duration,
    over: bool,
    _driver: Driver,
}

impl EventStream {
    /// The next event; `None` after the last frame.
    async fn next(&mut self) -> Result<Option<Event>, GuestError> {
        loop {
            if self.over {
                return Ok(None);
            }
            match self.decoder.next_frame() {
                Ok(Some(frame)) => {
                    let event = self.read(&frame).inspect_err(|_| self.over = true)?;
                    if event.is_some() || self.over {
                        return Ok(event);
                    }
                }
                Ok(None) => self.receive().await?,
                Err(error) => {
                    self.over = true;
                    return Err(error.into());
                }
            }
        }
    }

    fn read(&mut self, frame: &Frame) -> Result<Option<Event>, GuestError> {
        if frame.flags & FLAG_END_OF_STREAM != 0 {
            self.over = true;
            let end: EndOfStream = serde_json::from_slice(&frame.payload).map_err(|error| {
                GuestError::Protocol(format!("the last frame is not understood: {error}"))
            })?;
            return end.error.map_or(Ok(None), |error| Err(error.into()));
        }
        let message = StartResponse::decode_from_slice(&frame.payload).map_err(|error| {
            GuestError::Protocol(format!("an event is not understood: {error}"))
        })?;
        // Events that this version does not know are none.
        Ok(message.event.into_option().and_then(|event| event.event))
    }

    async fn receive(&mut self) -> Result<(), GuestError> {
        let start = Instant::now();
        let bound = self.deadline.map_or(self.silence, |deadline| {
            let left = deadline.saturating_duration_since(start) + self.grace;
            left.min(self.silence)
        });
        let received = timeout(bound, self.body.frame()).await.map_err(|_| {
            self.over = true;
            GuestError::Timeout {
                what: "give a sign of life",
                bound,
            }
        })?;
        if let Some(deadline) = self.deadline {
            // Only time spent waiting counts: a caller that comes late still
            // gets what is on the wire, a guest that drips does not last.
            let waited = Instant::now().saturating_duration_since(deadline.max(start));
            self.grace = self.grace.saturating_sub(waited);
        }
        match received {
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    self.decoder.push(&bytes);
                }
                Ok(())
            }
            Some(Err(error)) => {
                self.over = true;
                Err(error.into())
            }
            None => Err(self.broken(if self.decoder.is_empty() {
                "a stream ended without its last frame"
            } else {
                "a stream ended inside a frame"
            })),
        }
    }

    fn broken(&mut self, what: &str) -> GuestError {
        self.over = true;
        GuestError::Protocol(what.to_owned())
    }
}

/// Where a command's input goes.
#[derive(Debug, Clone, Copy)]
enum Target {
    Stdin,
    Terminal,
}

/// A handle for the input of a command. Calls on one handle that must keep
/// their order must be awaited one after the other.
#[derive(Debug, Clone)]
pub struct ProcessInput {
    client: GuestClient,
    pid: u32,
    target: Target,
}

impl ProcessInput {
    /// Sends input and waits until the command's pipe or terminal took all of
    /// it; that may take until the command ends, as with any pipe.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when the command has ended.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), GuestError> {
        for piece in bytes.chunks(INPUT_BYTES_MAX) {
            let input = match self.target {
                Target::Stdin => Input::Stdin(piece.to_vec()),
                Target::Terminal => Input::Pty(piece.to_vec()),
            };
            let message = SendInputRequest {
                process: selector(self.pid).into(),
                input: InputMessage {
                    input: Some(input),
                    ..Default::default()
                }
                .into(),
                ..Default::default()
            };
            self.client
                .call(
                    "/process.Process/SendInput",
                    &message,
                    &[],
                    Patience::WithTheCommand,
                )
                .await?;
        }
        Ok(())
    }

    /// Ends the input.
    ///
    /// # Errors
    /// `Rpc` when there is none to end, as with a terminal.
    pub async fn close(&self) -> Result<(), GuestError> {
        let message = CloseStdinRequest {
            process: selector(self.pid).into(),
            ..Default::default()
        };
        self.client
            .call(
                "/process.Process/CloseStdin",
                &message,
                &[],
                Patience::WithTheCommand,
            )
            .await
    }

    /// Sends a signal to the one process.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when it has ended.
    pub async fn signal(&self, signal: Signal) -> Result<(), GuestError> {
        self.send_signal(signal, &[]).await
    }

    /// Ends the command with everything it started.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when it has ended.
    pub async fn kill_tree(&self) -> Result<(), GuestError> {
        self.send_signal(
            Signal::Kill,
            &[(SIGNAL_SCOPE_HEADER, SIGNAL_SCOPE_TREE.to_owned())],
        )
        .await
    }

    async fn send_signal(
        &self,
        signal: Signal,
        headers: &[(&'static str, String)],
    ) -> Result<(), GuestError> {
        let signal = match signal {
            Signal::Terminate => SignalMessage::SIGNAL_SIGTERM,
            Signal::Kill => SignalMessage::SIGNAL_SIGKILL,
        };
        let message = SendSignalRequest {
            process: selector(self.pid).into(),
            signal: signal.into(),
            ..Default::default()
        };
        self.client
            .call(
                "/process.Process/SendSignal",
                &message,
                headers,
                Patience::Bounded,
            )
            .await
    }

    /// Changes the size of the terminal.
    ///
    /// # Errors
    /// `Rpc` when there is no terminal or the command has ended.
    pub async fn resize(&self, size: PtySize) -> Result<(), GuestError> {
        let message = UpdateRequest {
            process: selector(self.pid).into(),
            pty: PTY::from(size).into(),
            ..Default::default()
        };
        self.client
            .call("/process.Process/Update", &message, &[], Patience::Bounded)
            .await
    }
}

fn selector(pid: u32) -> ProcessSelector {
    ProcessSelector {
        selector: Some(Selector::Pid(pid)),
        ..Default::default()
    }
}
