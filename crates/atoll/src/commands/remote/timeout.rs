//! `atoll timeout`: how long a sandbox lives from now on.

use std::process::ExitCode;

use super::{about, server};
use crate::arguments::remote::TimeoutArguments;
use crate::home::Home;
use crate::terminal::harmless;

pub(crate) async fn timeout(home: &Home, arguments: &TimeoutArguments) -> anyhow::Result<ExitCode> {
    let TimeoutArguments { sandbox, timeout } = arguments;
    let client = server(home)?;
    client
        .set_timeout(sandbox, *timeout)
        .await
        .map_err(|error| about(sandbox, error))?;
    if timeout.is_zero() {
        eprintln!("{sandbox} ends now");
        return Ok(ExitCode::SUCCESS);
    }
    let detail = client
        .get(sandbox)
        .await
        .map_err(|error| about(sandbox, error))?;
    eprintln!("{sandbox} ends at {}", harmless(&detail.listed.end_at));
    Ok(ExitCode::SUCCESS)
}
