//! `atoll exec`: a command in a sandbox of a server, as if it ran here.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use atoll_client::{Command, GuestError, Process, ProcessEvent, ProcessInput, Sandbox};
use tokio::io::AsyncReadExt as _;

use super::{about, server};
use crate::arguments::remote::ExecArguments;
use crate::commands::inputs::environment;
use crate::commands::terminal_session::{self, exit_code};
use crate::failure::Hinted;
use crate::home::Home;

/// Exit status of a command that ran longer than it may.
const TIMED_OUT: u8 = 124;

pub(crate) async fn exec(home: &Home, arguments: &ExecArguments) -> anyhow::Result<ExitCode> {
    let mut envs = environment(&arguments.environment)?;
    let wants_terminal = arguments.tty;
    if wants_terminal && !std::io::stdin().is_terminal() {
        return Err(Hinted::error(
            "`--tty` needs a terminal on standard input",
            "leave it out in scripts",
        ));
    }
    if wants_terminal {
        envs.entry("TERM".to_owned())
            .or_insert_with(terminal_session::kind);
    }
    let has_input = !wants_terminal && !std::io::stdin().is_terminal();
    let (program, rest) = arguments
        .command
        .split_first()
        .context("there is no command")?;
    let command = Command {
        cmd: program.clone(),
        args: rest.to_vec(),
        envs,
        cwd: arguments.cwd.clone(),
        user: arguments.user.clone(),
        pty: wants_terminal.then(terminal_session::window_size),
        stdin: has_input || wants_terminal,
        timeout: arguments.timeout,
    };
    let sandbox = open(home, &arguments.sandbox).await?;
    let process = sandbox.commands().start(&command).await;
    let process = process.with_context(|| format!("cannot start `{program}`"))?;
    let ended = if wants_terminal {
        terminal_session::converse(process).await
    } else {
        if has_input {
            tokio::spawn(forward_input(process.input()));
        }
        follow(process).await
    };
    match ended {
        Err(error) if matches!(error.downcast_ref(), Some(GuestError::DeadlineExceeded)) => {
            eprintln!("error: the command reached its timeout");
            eprintln!("hint: allow more with --timeout");
            Ok(ExitCode::from(TIMED_OUT))
        }
        other => other,
    }
}

/// The sandbox, without changing how long it lives.
pub(super) async fn open(home: &Home, sandbox: &str) -> anyhow::Result<Sandbox> {
    let client = server(home)?;
    // A second is less than it has left, so nothing changes.
    let least = Some(std::time::Duration::from_secs(1));
    client
        .connect(sandbox, least)
        .await
        .map_err(|error| about(sandbox, error))
}

/// Shows what it writes until it ends.
async fn follow(mut process: Process) -> anyhow::Result<ExitCode> {
    loop {
        match process.next().await? {
            Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes)) => {
                let mut out = std::io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(ProcessEvent::Stderr(bytes)) => std::io::stderr().write_all(&bytes)?,
            Some(ProcessEvent::End(status)) => return Ok(exit_code(status)),
            None => anyhow::bail!("the command ended without a status"),
        }
    }
}

async fn forward_input(input: ProcessInput) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0_u8; 64 * 1024];
    while let Ok(length) = stdin.read(&mut buffer).await {
        if length == 0 {
            let _ = input.close().await;
            return;
        }
        // It has ended, or wants no more.
        if input.send(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
