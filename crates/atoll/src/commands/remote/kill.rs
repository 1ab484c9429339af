//! `atoll kill`: ends sandboxes of a server.

use std::process::ExitCode;

use atoll_client::{ClientError, ListOptions};

use super::{about, server};
use crate::arguments::remote::KillArguments;
use crate::failure;
use crate::home::Home;

pub(crate) async fn kill(home: &Home, arguments: &KillArguments) -> anyhow::Result<ExitCode> {
    let client = server(home)?;
    let sandboxes = if arguments.all {
        let listed = client.list(&ListOptions::default()).all().await?;
        listed.into_iter().map(|listed| listed.sandbox_id).collect()
    } else {
        arguments.sandboxes.clone()
    };
    let mut status = ExitCode::SUCCESS;
    for sandbox in &sandboxes {
        match client.kill(sandbox).await {
            Ok(()) => println!("{sandbox}"),
            // It ended by itself between the list and now.
            Err(ClientError::NotFound(_)) if arguments.all => {}
            // The others are ended all the same.
            Err(error) => status = failure::show(&about(sandbox, error)),
        }
    }
    Ok(status)
}
