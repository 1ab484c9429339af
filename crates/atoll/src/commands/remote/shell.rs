//! `atoll shell SANDBOX`: a terminal in a sandbox of a server.

use std::process::ExitCode;

use anyhow::Context as _;

use super::exec::open;
use crate::commands::terminal_session;
use crate::home::Home;

pub(crate) async fn shell(home: &Home, sandbox: &str) -> anyhow::Result<ExitCode> {
    terminal_session::require()?;
    let sandbox = open(home, sandbox).await?;
    let command = terminal_session::login_shell();
    let process = sandbox.commands().start(&command).await;
    terminal_session::converse(process.context("cannot start a shell")?).await
}
