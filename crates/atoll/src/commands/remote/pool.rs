//! `atoll pool`: the warm pools of a server.

use std::process::ExitCode;

use atoll_client::{Pool, PoolMode};

use super::server;
use crate::arguments::remote::PoolArguments;
use crate::home::Home;
use crate::terminal::{self, harmless};

pub(crate) async fn pool(home: &Home, arguments: &PoolArguments) -> anyhow::Result<ExitCode> {
    let pools = server(home)?.pools().await?;
    if arguments.json {
        println!("{}", serde_json::to_string(&pools)?);
        return Ok(ExitCode::SUCCESS);
    }
    if pools.is_empty() {
        eprintln!("no pools");
        eprintln!(
            "hint: `[[pool]]` with `template = \"base\"` and `size = 2` in `config.toml` makes one at the next start"
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = terminal::table();
    table.set_header([
        "TEMPLATE", "SIZE", "WANTED", "READY", "STARTING", "CLAIMED", "MISSES", "REPLACED",
    ]);
    for pool in &pools {
        table.add_row(row(pool));
    }
    println!("{table}");
    for pool in &pools {
        if let Some(failure) = &pool.failure {
            eprintln!("{}: {}", harmless(&pool.template), harmless(failure));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(pool: &Pool) -> [String; 8] {
    let size = match pool.mode {
        PoolMode::Fixed => pool.max.to_string(),
        PoolMode::Adaptive => format!("adaptive, max {}", pool.max),
    };
    [
        harmless(&pool.template),
        size,
        pool.wanted.to_string(),
        pool.ready.to_string(),
        pool.starting.to_string(),
        pool.claimed.to_string(),
        pool.misses.to_string(),
        pool.replaced.to_string(),
    ]
}
