//! `atoll env`: the variables that lead E2B's clients to the server of this home.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::arguments::EnvArguments;
use crate::endpoint::Endpoint;
use crate::failure::Hinted;
use crate::home::Home;

pub(crate) fn env(home: &Home, arguments: &EnvArguments) -> anyhow::Result<ExitCode> {
    let endpoint = Endpoint::read(home.path())
        .context("cannot read where the server is")?
        .ok_or_else(|| {
            Hinted::error(
                format!("no server runs on `{}`", home.path().display()),
                "start one with `atoll serve`",
            )
        })?;
    let variables = [
        ("E2B_API_KEY", endpoint.api_key.as_str()),
        ("E2B_API_URL", endpoint.url.as_str()),
        ("E2B_SANDBOX_URL", endpoint.url.as_str()),
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
