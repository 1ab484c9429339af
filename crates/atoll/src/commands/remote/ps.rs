//! `atoll ps`: the sandboxes of a server.

use std::process::ExitCode;

use atoll_client::{ListOptions, ListedSandbox, SandboxState};
use atoll_control::identity::now_ms;
use comfy_table::ColumnConstraint;

use super::{pairs, server};
use crate::arguments::remote::PsArguments;
use crate::home::Home;
use crate::terminal::{self, harmless, relative};

pub(crate) async fn ps(home: &Home, arguments: &PsArguments) -> anyhow::Result<ExitCode> {
    let options = ListOptions {
        metadata: pairs("metadata", &arguments.metadata)?,
        template: arguments.template.clone(),
        ..ListOptions::default()
    };
    let listed = server(home)?.list(&options).all().await?;
    if arguments.json {
        println!("{}", serde_json::to_string(&listed)?);
        return Ok(ExitCode::SUCCESS);
    }
    if listed.is_empty() {
        eprintln!("no sandboxes");
        eprintln!("hint: `atoll create` makes one");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = terminal::table();
    table.set_header([
        "SANDBOX", "TEMPLATE", "STATE", "STARTED", "ENDS", "CPUS", "MEMORY", "METADATA",
    ]);
    // Names are there to be copied: whole.
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    for sandbox in &listed {
        table.add_row(row(sandbox));
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

fn row(sandbox: &ListedSandbox) -> [String; 8] {
    let template = sandbox.alias.as_ref().unwrap_or(&sandbox.template_id);
    let metadata: Vec<String> = sandbox
        .metadata
        .iter()
        .map(|(name, value)| harmless(&format!("{name}={value}")))
        .collect();
    [
        harmless(&sandbox.sandbox_id),
        harmless(template),
        state(sandbox.state).to_owned(),
        moment(&sandbox.started_at),
        moment(&sandbox.end_at),
        sandbox.cpu_count.to_string(),
        format!("{} MiB", sandbox.memory_mb),
        metadata.join(" "),
    ]
}

/// A moment for a person; as it came when it is none.
fn moment(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(moment) => relative(moment.as_millisecond(), now_ms()),
        Err(_) => harmless(text),
    }
}

fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
    }
}
