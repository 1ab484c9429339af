//! `process.Process` over the table of commands.

use std::sync::Arc;
use std::time::Duration;

use atoll_protocol::envd::process::{
    CloseStdinRequest, CloseStdinResponse, ConnectRequest, ConnectResponse, ListRequest,
    ListResponse, PTY, Process, ProcessConfig, ProcessEvent, ProcessInfo, ProcessInput,
    ProcessSelector, SendInputRequest, SendInputResponse, SendSignalRequest, SendSignalResponse,
    Signal, StartRequest, StartResponse, StreamInputRequest, StreamInputResponse, UpdateRequest,
    UpdateResponse, process_event,
};
use atoll_protocol::envd::process_oneof::{Input, Output, Selector, StreamInputEvent};
use atoll_protocol::status::ExitStatus;
use atoll_protocol::{SIGNAL_SCOPE_HEADER, SIGNAL_SCOPE_TREE};
use connectrpc::{
    ConnectError, InboundStream, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures_util::StreamExt;
use futures_util::stream::unfold;
use rustix::termios::Winsize;
use tokio::time::{Instant, timeout_at};

use super::Commands;
use super::audience::{End, Following, Output as Said};
use super::command::{Command, InputError};
use super::launch::{Launch, LaunchError, Streams, environment, launch};
use crate::access::basic_user;
use crate::rpc::keepalive_interval;

/// Longest name that a client may give a command.
const TAG_BYTES_MAX: usize = 1024;

#[allow(
    refining_impl_trait,
    reason = "the generated trait asks for `impl Encodable`, we name the messages"
)]
impl Process for Commands {
    async fn list(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ListRequest>,
    ) -> ServiceResult<ListResponse> {
        let processes = self
            .running()
            .iter()
            .map(|command| ProcessInfo {
                config: ProcessConfig::clone(&command.config()).into(),
                pid: command.pid(),
                tag: command.tag().map(str::to_owned),
                ..ProcessInfo::default()
            })
            .collect();
        Response::ok(ListResponse {
            processes,
            ..ListResponse::default()
        })
    }

    async fn start(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, StartRequest>,
    ) -> ServiceResult<ServiceStream<StartResponse>> {
        let request = request.to_owned_message();
        let deadline = context.deadline().map(Instant::from_std);
        let user = basic_user(context.headers());
        let (commands, keepalive) = (self.clone(), keepalive_interval(&context));
        // A task of its own: a client that hangs up half-way must not leave
        // a process that nobody knows.
        let started = tokio::spawn(async move {
            commands
                .start_command(request, user.as_deref(), deadline)
                .await
        });
        let (command, events) = started
            .await
            .map_err(|error| ConnectError::internal(error.to_string()))??;
        Response::stream_ok(follow(&command, events, keepalive, None, |event| {
            StartResponse {
                event: event.into(),
                ..StartResponse::default()
            }
        }))
    }

    async fn connect(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, ConnectRequest>,
    ) -> ServiceResult<ServiceStream<ConnectResponse>> {
        let command = self.select(request.to_owned_message().process.as_option())?;
        let deadline = context.deadline().map(Instant::from_std);
        let events = command.follow();
        Response::stream_ok(follow(
            &command,
            events,
            keepalive_interval(&context),
            deadline,
            |event| ConnectResponse {
                event: event.into(),
                ..ConnectResponse::default()
            },
        ))
    }

    async fn update(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, UpdateRequest>,
    ) -> ServiceResult<UpdateResponse> {
        let request = request.to_owned_message();
        let command = self.select_running(request.process.as_option())?;
        if let Some(pty) = request.pty.as_option() {
            command.resize(window(pty)?).map_err(input_error)?;
        }
        Response::ok(UpdateResponse::default())
    }

    async fn stream_input(
        &self,
        _: RequestContext,
        mut requests: InboundStream<StreamInputRequest>,
    ) -> ServiceResult<StreamInputResponse> {
        let mut command = None;
        while let Some(request) = requests.next().await {
            match (request?.to_owned_message().event, &command) {
                (Some(StreamInputEvent::Start(start)), _) => {
                    command = Some(self.select_running(start.process.as_option())?);
                }
                (Some(StreamInputEvent::Data(data)), Some(command)) => {
                    write_input(command, data.input.as_option()).await?;
                }
                (Some(StreamInputEvent::Data(_)), None) => {
                    return Err(ConnectError::invalid_argument(
                        "the first message of an input stream must name a process",
                    ));
                }
                (Some(StreamInputEvent::Keepalive(_)) | None, _) => {}
            }
        }
        Response::ok(StreamInputResponse::default())
    }

    async fn send_input(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, SendInputRequest>,
    ) -> ServiceResult<SendInputResponse> {
        let request = request.to_owned_message();
        let command = self.select_running(request.process.as_option())?;
        write_input(&command, request.input.as_option()).await?;
        Response::ok(SendInputResponse::default())
    }

    async fn send_signal(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, SendSignalRequest>,
    ) -> ServiceResult<SendSignalResponse> {
        let request = request.to_owned_message();
        let command = self.select_running(request.process.as_option())?;
        let signal = match request.signal.as_known() {
            Some(Signal::SIGNAL_SIGKILL) => rustix::process::Signal::KILL,
            Some(Signal::SIGNAL_SIGTERM) => rustix::process::Signal::TERM,
            Some(Signal::SIGNAL_UNSPECIFIED) | None => {
                return Err(ConnectError::invalid_argument("invalid signal"));
            }
        };
        let whole_tree = context
            .header(SIGNAL_SCOPE_HEADER)
            .is_some_and(|scope| scope == SIGNAL_SCOPE_TREE);
        if whole_tree {
            command.kill_tree().await.map_err(input_error)?;
        } else {
            command.signal(signal).map_err(input_error)?;
        }
        Response::ok(SendSignalResponse::default())
    }

    async fn close_stdin(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, CloseStdinRequest>,
    ) -> ServiceResult<CloseStdinResponse> {
        let command = self.select_running(request.to_owned_message().process.as_option())?;
        command.close_stdin().await.map_err(input_error)?;
        Response::ok(CloseStdinResponse::default())
    }
}

impl Commands {
    async fn start_command(
        &self,
        request: StartRequest,
        user: Option<&str>,
        deadline: Option<Instant>,
    ) -> Result<(Arc<Command>, Following), ConnectError> {
        if request
            .tag
            .as_ref()
            .is_some_and(|tag| tag.len() > TAG_BYTES_MAX)
        {
            return Err(ConnectError::invalid_argument(format!(
                "a tag has at most {TAG_BYTES_MAX} bytes"
            )));
        }
        let config = request
            .process
            .into_option()
            .ok_or_else(|| ConnectError::invalid_argument("nothing to start"))?;
        let user = self
            .settings
            .user(user)
            .map_err(|error| ConnectError::unauthenticated(error.to_string()))?;
        let requested = config.cwd.as_deref().unwrap_or_default();
        let mut cwd = self
            .settings
            .resolve(requested, &user)
            .map_err(|error| ConnectError::invalid_argument(error.to_string()))?;
        if !std::path::Path::new(&cwd).is_dir() {
            if !requested.is_empty() {
                return Err(ConnectError::invalid_argument(format!(
                    "cwd '{cwd}' does not exist"
                )));
            }
            // As `login` does for users whose home is missing.
            "/".clone_into(&mut cwd);
        }
        let streams = match request.pty.as_option() {
            Some(pty) => Streams::Terminal(window(pty)?),
            None if request.stdin.unwrap_or(true) => Streams::Pipes,
            None => Streams::OutputOnly,
        };
        let env = environment(&user, self.settings.env(), config.envs.clone());
        let order = Launch {
            cmd: config.cmd.clone(),
            args: config.args.clone(),
            env,
            cwd,
            user,
            streams,
        };
        let launched = launch(order, &self.spare)
            .await
            .map_err(|error| match error {
                LaunchError::Refused { .. } | LaunchError::Directory { .. } => {
                    ConnectError::invalid_argument(error.to_string())
                }
                LaunchError::Guest(_) => ConnectError::resource_exhausted(error.to_string()),
            })?;
        let (command, events) = Command::adopt(launched, config, request.tag, deadline);
        self.insert(&command);
        Ok((command, events))
    }

    fn select(&self, selector: Option<&ProcessSelector>) -> Result<Arc<Command>, ConnectError> {
        match selector.and_then(|selector| selector.selector.as_ref()) {
            Some(Selector::Pid(pid)) => self.by_pid(*pid).ok_or_else(|| {
                ConnectError::not_found(format!("process with pid {pid} not found"))
            }),
            Some(Selector::Tag(tag)) => self.by_tag(tag).ok_or_else(|| {
                ConnectError::not_found(format!("process with tag {tag} not found"))
            }),
            None => Err(ConnectError::invalid_argument("no process selected")),
        }
    }

    fn select_running(
        &self,
        selector: Option<&ProcessSelector>,
    ) -> Result<Arc<Command>, ConnectError> {
        let command = self.select(selector)?;
        if command.has_exited() {
            Err(input_error(InputError::Ended))
        } else {
            Ok(command)
        }
    }
}

async fn write_input(command: &Command, input: Option<&ProcessInput>) -> Result<(), ConnectError> {
    match input.and_then(|input| input.input.as_ref()) {
        Some(Input::Stdin(bytes)) => command.write_stdin(bytes).await.map_err(input_error),
        Some(Input::Pty(bytes)) => command.write_terminal(bytes).await.map_err(input_error),
        None => Err(ConnectError::invalid_argument("no input given")),
    }
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "it is the last stop of the error"
)]
fn input_error(error: InputError) -> ConnectError {
    let message = error.to_string();
    match error {
        InputError::Ended => ConnectError::not_found(message),
        InputError::NoTerminal | InputError::CannotClose => {
            ConnectError::failed_precondition(message)
        }
        InputError::Remains => ConnectError::aborted(message),
        InputError::NoStdin | InputError::Write(_) => ConnectError::internal(message),
    }
}

fn window(pty: &PTY) -> Result<Winsize, ConnectError> {
    let size = pty
        .size
        .as_option()
        .ok_or_else(|| ConnectError::invalid_argument("the terminal has no size"))?;
    let side = |value: u32| {
        u16::try_from(value)
            .map_err(|_| ConnectError::invalid_argument("the terminal is too large"))
    };
    Ok(Winsize {
        ws_row: side(size.rows)?,
        ws_col: side(size.cols)?,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

/// What a followed stream still has to say.
struct Telling {
    pid: Option<u32>,
    events: Following,
    keepalive: Duration,
    deadline: Option<Instant>,
    over: bool,
}

/// The events of a command as messages: its start first, then what happens,
/// a sign of life in silence, its end last.
fn follow<T: Send + 'static>(
    command: &Command,
    events: Following,
    keepalive: Duration,
    deadline: Option<Instant>,
    wrap: fn(ProcessEvent) -> T,
) -> impl futures_util::Stream<Item = Result<T, ConnectError>> + Send + 'static {
    let start = Telling {
        pid: Some(command.pid()),
        events,
        keepalive,
        deadline,
        over: false,
    };
    unfold(start, move |mut telling| async move {
        if telling.over {
            return None;
        }
        let item = telling.next().await;
        Some((
            item.map(|event| {
                wrap(ProcessEvent {
                    event: Some(event),
                    ..ProcessEvent::default()
                })
            }),
            telling,
        ))
    })
}

impl Telling {
    async fn next(&mut self) -> Result<atoll_protocol::envd::process_oneof::Event, ConnectError> {
        if let Some(pid) = self.pid.take() {
            return Ok(process_event::StartEvent {
                pid,
                ..Default::default()
            }
            .into());
        }
        let silence = Instant::now() + self.keepalive;
        let until = self
            .deadline
            .map_or(silence, |deadline| deadline.min(silence));
        let Ok(event) = timeout_at(until, self.events.next()).await else {
            if self.deadline == Some(until) {
                self.over = true;
                return Err(deadline_exceeded());
            }
            return Ok(process_event::KeepAlive::default().into());
        };
        let end = match event {
            Ok(Said::Stdout(bytes)) => return Ok(data(Output::Stdout(bytes.into()))),
            Ok(Said::Stderr(bytes)) => return Ok(data(Output::Stderr(bytes.into()))),
            Ok(Said::Terminal(bytes)) => return Ok(data(Output::Pty(bytes.into()))),
            Err(end) => end,
        };
        self.over = true;
        match end {
            Some(End::Deadline(_)) if self.events.learns_of_deadline() => Err(deadline_exceeded()),
            Some(End::Own(status) | End::Deadline(status)) => Ok(end_event(status).into()),
            None => Err(ConnectError::internal("the process ended without a status")),
        }
    }
}

fn data(output: Output) -> atoll_protocol::envd::process_oneof::Event {
    process_event::DataEvent {
        output: Some(output),
        ..Default::default()
    }
    .into()
}

fn end_event(status: ExitStatus) -> process_event::EndEvent {
    let text = status.text();
    process_event::EndEvent {
        exit_code: status.code(),
        exited: matches!(status, ExitStatus::Exited(_)),
        error: (status != ExitStatus::Exited(0)).then(|| text.clone()),
        status: text,
        ..Default::default()
    }
}

fn deadline_exceeded() -> ConnectError {
    ConnectError::deadline_exceeded("context deadline exceeded")
}
