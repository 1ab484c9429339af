//! `atoll pause` and `atoll resume`: sandboxes of a server hold still, and run on.

use std::process::ExitCode;

use super::{about, server};
use crate::arguments::remote::{PauseArguments, ResumeArguments};
use crate::failure;
use crate::home::Home;

pub(crate) async fn pause(home: &Home, arguments: &PauseArguments) -> anyhow::Result<ExitCode> {
    let client = server(home)?;
    let mut status = ExitCode::SUCCESS;
    for sandbox in &arguments.sandboxes {
        match client.pause(sandbox).await {
            Ok(()) => println!("{sandbox}"),
            // The others are paused all the same.
            Err(error) => status = failure::show(&about(sandbox, error)),
        }
    }
    Ok(status)
}

pub(crate) async fn resume(home: &Home, arguments: &ResumeArguments) -> anyhow::Result<ExitCode> {
    let client = server(home)?;
    let mut status = ExitCode::SUCCESS;
    for sandbox in &arguments.sandboxes {
        match client.connect(sandbox, Some(arguments.timeout)).await {
            Ok(_) => println!("{sandbox}"),
            // The others are woken up all the same.
            Err(error) => status = failure::show(&about(sandbox, error)),
        }
    }
    Ok(status)
}
