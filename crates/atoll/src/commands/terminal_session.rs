//! A person's terminal, connected to one in a sandbox.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use atoll_guest_client::{Command, ExitStatus, Process, ProcessEvent, ProcessInput, PtySize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Hinted;

/// Refuses to go on without a terminal.
pub(crate) fn require() -> anyhow::Result<()> {
    if std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Hinted::error(
        "`atoll shell` needs a terminal on standard input",
        "for a script use `atoll run --lang bash -`",
    ))
}

/// What kind of terminal this is.
pub(crate) fn kind() -> String {
    std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned())
}

/// A shell for a person.
pub(crate) fn login_shell() -> Command {
    Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-i".to_owned(), "-l".to_owned()],
        envs: BTreeMap::from([("TERM".to_owned(), kind())]),
        pty: Some(window_size()),
        stdin: true,
        ..Command::default()
    }
}

/// Passes keys in and output out until the command ends.
pub(crate) async fn converse(mut process: Process) -> anyhow::Result<ExitCode> {
    let raw = RawTerminal::enter()?;
    let typing = tokio::spawn(forward_typing(process.input()));
    let resizing = tokio::spawn(forward_size(process.input()));
    let ended = show(&mut process).await;
    typing.abort();
    resizing.abort();
    drop(raw);
    ended.map(exit_code)
}

async fn show(process: &mut Process) -> anyhow::Result<ExitStatus> {
    loop {
        match process.next().await? {
            Some(
                ProcessEvent::Pty(bytes)
                | ProcessEvent::Stdout(bytes)
                | ProcessEvent::Stderr(bytes),
            ) => {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(ProcessEvent::End(exit)) => return Ok(exit),
            None => anyhow::bail!("the shell ended without a status"),
        }
    }
}

/// The status that shells give to such an end.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    match status {
        ExitStatus::Exited(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        ExitStatus::Signaled(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
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

/// Size of the terminal on standard input.
pub(crate) fn window_size() -> PtySize {
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
