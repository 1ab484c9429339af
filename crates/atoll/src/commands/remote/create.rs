//! `atoll create`: a sandbox on a server. Its name goes to standard output.

use std::process::ExitCode;

use atoll_client::{ClientError, CreateOptions, NetworkOptions, OnTimeout};
use serde_json::json;

use super::{pairs, server};
use crate::arguments::remote::CreateArguments;
use crate::commands::inputs::environment;
use crate::failure::Hinted;
use crate::home::Home;
use crate::terminal::harmless;

pub(crate) async fn create(home: &Home, arguments: &CreateArguments) -> anyhow::Result<ExitCode> {
    let CreateArguments {
        template,
        timeout,
        allow_out,
        deny_out,
        ..
    } = arguments;
    let network = NetworkOptions {
        allow_out: allow_out.clone(),
        deny_out: deny_out.clone(),
        allow_public_traffic: arguments.private.then_some(false),
        ..NetworkOptions::default()
    };
    let options = CreateOptions {
        timeout: *timeout,
        metadata: pairs("metadata", &arguments.metadata)?,
        envs: environment(&arguments.environment)?,
        allow_internet_access: arguments.no_internet.then_some(false),
        network: (network != NetworkOptions::default()).then_some(network),
        on_timeout: if arguments.auto_pause {
            OnTimeout::Pause
        } else {
            OnTimeout::Kill
        },
        auto_resume: arguments.auto_resume,
        ..CreateOptions::template(template)
    };
    let created = server(home)?.create(&options).await;
    let sandbox = created.map_err(|error| match error {
        ClientError::NotFound(what) => {
            Hinted::error(what, "`atoll template list` shows the templates of a home")
        }
        error => error.into(),
    })?;
    if arguments.json {
        let object = json!({
            "sandbox_id": sandbox.id(),
            "template_id": sandbox.template(),
            "traffic_token": sandbox.traffic_token(),
        });
        println!("{object}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", harmless(sandbox.id()));
    if let Some(token) = sandbox.traffic_token() {
        eprintln!(
            "its ports want the header `e2b-traffic-access-token: {}`",
            harmless(token)
        );
    }
    Ok(ExitCode::SUCCESS)
}
