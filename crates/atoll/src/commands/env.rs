//! `atoll env`: the variables that lead E2B's clients to the server of this home.

use std::process::ExitCode;

use atoll_client::{ClientError, Endpoint};
use serde_json::json;

use crate::arguments::EnvArguments;
use crate::home::Home;

pub(crate) fn env(home: &Home, arguments: &EnvArguments) -> anyhow::Result<ExitCode> {
    let endpoint = Endpoint::local(home.path()).map_err(ClientError::from)?;
    let url = endpoint.url();
    let variables = [
        ("E2B_API_KEY", endpoint.key()),
        ("E2B_API_URL", &url),
        ("E2B_SANDBOX_URL", &url),
    ];
    if arguments.json {
        println!("{}", json!(std::collections::BTreeMap::from(variables)));
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in variables {
        println!("export {name}={value}");
    }
    Ok(ExitCode::SUCCESS)
}
