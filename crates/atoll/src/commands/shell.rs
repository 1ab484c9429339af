//! `atoll shell`: a terminal in a fresh sandbox.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use atoll_guest_client::{Command, ExitStatus, ProcessEvent, ProcessInput, PtySize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

use super::inputs;
use crate::arguments::ShellArguments;
use crate::failure::Hinted;
use crate::home::Home;

/// Longer than any shell is left open.
const LIFE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the host may take to say why a sandbox ended.
const REASON_BOUND: Duration = Duration::from_secs(2);

pub(crate) async fn shell(home: &Home, arguments: &ShellArguments) -> anyhow::Result<ExitCode> {
    if !std::io::stdin().is_terminal() {
        return Err(Hinted::error(
            "`atoll shell` needs a terminal on standard input",
            "for a script use `atoll run --lang bash -`",
        ));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let inputs::Opened { live, template, .. } =
        inputs::open(home, &arguments.sandbox, arguments.timeout).await?;
    let mut envs = std::collections::BTreeMap::new();
    envs.insert(
        "TERM".to_owned(),
        std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned()),
    );
    let command = Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-i".to_owned(), "-l".to_owned()],
        envs,
        cwd: Some(template.workdir.clone()),
        pty: Some(window_size()),
        stdin: true,
        ..Command::default()
    };
    let ended = tokio::select! {
        ended = converse(&live, &command) => ended,
        _ = terminate.recv() => Ok(ExitCode::from(143)),
        _ = hang_up.recv() => Ok(ExitCode::from(129)),
    };
    live.destroy().await.ok(); // it may have ended by its lifetime
    ended
}

async fn converse(
    live: &atoll_control::LiveSandbox,
    command: &Command,
) -> anyhow::Result<ExitCode> {
    let mut process = live
        .guest()
        .start(command)
        .await
        .context("cannot start a shell")?;
    let raw = RawTerminal::enter()?;
    let typing = tokio::spawn(forward_typing(process.input()));
    let resizing = tokio::spawn(forward_size(process.input()));
    // Not every kind of sandbox can close its connections when it ends.
    let mut sandbox_end = std::pin::pin!(live.wait(LIFE_MAX));
    let ended = loop {
        let event = tokio::select! {
            event = process.next() => event,
            _ = &mut sandbox_end => break Err(anyhow::anyhow!("the connection to the shell broke")),
        };
        match event {
            Ok(Some(
                ProcessEvent::Pty(bytes)
                | ProcessEvent::Stdout(bytes)
                | ProcessEvent::Stderr(bytes),
            )) => {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Ok(Some(ProcessEvent::End(exit))) => break Ok(exit),
            Ok(None) => break Err(anyhow::anyhow!("the shell ended without a status")),
            Err(error) => break Err(error.into()),
        }
    };
    typing.abort();
    resizing.abort();
    drop(raw);
    match ended {
        Ok(ExitStatus::Exited(code)) => Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))),
        Ok(ExitStatus::Signaled(signal)) => {
            Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)))
        }
        Err(error) => match live.wait(REASON_BOUND).await {
            Ok(Some(outcome)) => Err(anyhow::anyhow!("the sandbox has ended: {outcome}")),
            _ => Err(error),
        },
    }
}

async fn forward_typing(input: ProcessInput) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0_u8; 4096];
    while let Ok(length) = stdin.read(&mut buffer).await {
        if length == 0 || input.send(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn forward_size(input: ProcessInput) {
    let Ok(mut changed) = signal(SignalKind::window_change()) else {
        return;
    };
    while changed.recv().await.is_some() {
        if input.resize(window_size()).await.is_err() {
            return;
        }
    }
}

fn window_size() -> PtySize {
    tcgetwinsize(std::io::stdin()).map_or(PtySize { cols: 80, rows: 24 }, |size| PtySize {
        cols: size.ws_col.max(1),
        rows: size.ws_row.max(1),
    })
}

/// The user's terminal, passing every key on; as it was when dropped.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> anyhow::Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.before);
    }
}
