//! `atoll snapshot` and `atoll fork`: the files of a sandbox of a server, kept and
//! multiplied.

use std::process::ExitCode;

use atoll_client::{ClientError, SnapshotOptions};
use serde_json::json;

use super::{about, server};
use crate::arguments::remote::{ForkArguments, SnapshotCommand};
use crate::failure::{self, Hinted};
use crate::home::Home;
use crate::terminal::{self, harmless};

pub(crate) async fn snapshot(home: &Home, command: &SnapshotCommand) -> anyhow::Result<ExitCode> {
    let client = server(home)?;
    match command {
        SnapshotCommand::Create {
            sandbox,
            name,
            json,
        } => {
            let taken = client.create_snapshot(sandbox, name.as_deref()).await;
            let taken = taken.map_err(|error| about(sandbox, error))?;
            if *json {
                println!("{}", serde_json::to_string(&taken)?);
            } else {
                println!("{}", harmless(&taken.snapshot_id));
            }
        }
        SnapshotCommand::List {
            sandbox,
            name,
            json,
        } => {
            let options = SnapshotOptions {
                sandbox: sandbox.clone(),
                name: name.clone(),
            };
            let found = client.snapshots(&options).await?;
            if *json {
                println!("{}", serde_json::to_string(&found)?);
                return Ok(ExitCode::SUCCESS);
            }
            if found.is_empty() {
                eprintln!("no snapshots");
                eprintln!("hint: `atoll snapshot create SANDBOX` takes one");
                return Ok(ExitCode::SUCCESS);
            }
            let mut table = terminal::table();
            table.set_header(["SNAPSHOT", "NAME", "HOLDS"]);
            for one in &found {
                let holds = if one.has_memory {
                    "memory, files"
                } else {
                    "files"
                };
                let (id, names) = (&one.snapshot_id, one.names.join(" "));
                table.add_row([harmless(id), harmless(&names), holds.into()]);
            }
            println!("{table}");
        }
        SnapshotCommand::Rm { snapshots } => {
            let mut status = ExitCode::SUCCESS;
            for snapshot in snapshots {
                match client.delete_snapshot(snapshot).await {
                    Ok(()) => println!("{snapshot}"),
                    // The others are deleted all the same.
                    Err(error) => status = failure::show(&of_snapshot(snapshot, error)),
                }
            }
            return Ok(status);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn fork(home: &Home, arguments: &ForkArguments) -> anyhow::Result<ExitCode> {
    let ForkArguments {
        sandbox,
        count,
        timeout,
        json,
    } = arguments;
    let forks = server(home)?.fork(sandbox, *count, *timeout).await;
    let forks = forks.map_err(|error| about(sandbox, error))?;
    let mut status = ExitCode::SUCCESS;
    let mut made = Vec::new();
    for fork in forks {
        match fork {
            Ok(fork) => made.push(fork),
            Err(error) => status = failure::show(&error.into()),
        }
    }
    if *json {
        let ids: Vec<_> = made
            .iter()
            .map(|fork| json!({"sandbox_id": fork.id()}))
            .collect();
        println!("{}", serde_json::Value::from(ids));
    } else {
        for fork in &made {
            println!("{}", harmless(fork.id()));
        }
    }
    Ok(status)
}

fn of_snapshot(snapshot: &str, error: ClientError) -> anyhow::Error {
    match error {
        ClientError::NotFound(_) => Hinted::error(
            format!("there is no snapshot `{snapshot}`"),
            "`atoll snapshot list` shows those that there are",
        ),
        error => error.into(),
    }
}
