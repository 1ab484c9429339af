//! `atoll inspect`: everything a server knows about one sandbox.

use std::process::ExitCode;

use serde_json::Value;

use super::{about, server};
use crate::arguments::remote::InspectArguments;
use crate::home::Home;
use crate::terminal::{self, harmless};

/// Opens the sandbox: for programs that ask for it, not for screens.
const SECRET: &str = "envdAccessToken";

pub(crate) async fn inspect(home: &Home, arguments: &InspectArguments) -> anyhow::Result<ExitCode> {
    let sandbox = &arguments.sandbox;
    let detail = server(home)?
        .get(sandbox)
        .await
        .map_err(|error| about(sandbox, error))?;
    let detail = serde_json::to_value(detail)?;
    if arguments.json {
        println!("{detail}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = terminal::table();
    for (name, value) in detail.as_object().into_iter().flatten() {
        if name != SECRET && !value.is_null() {
            table.add_row([name.clone(), plain(value)]);
        }
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

/// A value as a person reads it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => harmless(text),
        other => harmless(&other.to_string()),
    }
}
