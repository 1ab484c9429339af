//! `atoll shell`: a terminal in a fresh sandbox.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use atoll_control::LiveSandbox;
use atoll_guest_client::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::{inputs, terminal_session};
use crate::arguments::ShellArguments;
use crate::home::Home;

/// Longer than any shell is left open.
const LIFE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the host may take to say why a sandbox ended.
const REASON_BOUND: Duration = Duration::from_secs(2);

pub(crate) async fn shell(home: &Home, arguments: &ShellArguments) -> anyhow::Result<ExitCode> {
    terminal_session::require()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let inputs::Opened { live, template, .. } = inputs::open(
        home,
        &arguments.sandbox,
        inputs::DEFAULT_TEMPLATE,
        arguments.timeout,
    )
    .await?;
    let command = Command {
        cwd: Some(template.workdir.clone()),
        ..terminal_session::login_shell()
    };
    let ended = tokio::select! {
        ended = converse(&live, &command) => ended,
        _ = terminate.recv() => Ok(ExitCode::from(143)),
        _ = hang_up.recv() => Ok(ExitCode::from(129)),
    };
    live.destroy().await.ok(); // it may have ended by its lifetime
    ended
}

async fn converse(live: &LiveSandbox, command: &Command) -> anyhow::Result<ExitCode> {
    let process = live.guest().start(command).await;
    let process = process.context("cannot start a shell")?;
    let ended = tokio::select! {
        ended = terminal_session::converse(process) => ended,
        // Not every kind of sandbox can close its connections when it ends.
        _ = live.wait(LIFE_MAX) => Err(anyhow::anyhow!("the connection to the shell broke")),
    };
    match ended {
        Ok(code) => Ok(code),
        Err(error) => match live.wait(REASON_BOUND).await {
            Ok(Some(outcome)) => Err(anyhow::anyhow!("the sandbox has ended: {outcome}")),
            _ => Err(error),
        },
    }
}
