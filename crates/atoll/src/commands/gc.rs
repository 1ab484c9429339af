//! `atoll gc`: what is not needed any more.

use std::process::ExitCode;

use anyhow::Context as _;
use atoll_engine::{sweep, sweep_preview};

use crate::arguments::GcArguments;
use crate::home::{Home, require_root};
use crate::quantity::show_bytes;

pub(crate) fn gc(home: &Home, arguments: &GcArguments) -> anyhow::Result<ExitCode> {
    require_root()?;
    let swept = if arguments.dry_run {
        sweep_preview(home.path(), arguments.older_than)
    } else {
        sweep(home.path(), arguments.older_than)
    }
    .context("cannot clean up")?;
    if arguments.json {
        println!("{}", serde_json::to_string(&swept)?);
        return Ok(ExitCode::SUCCESS);
    }
    let verb = if arguments.dry_run {
        "would remove"
    } else {
        "removed"
    };
    println!(
        "{verb} {} sandboxes left by interrupted runs",
        swept.sandboxes
    );
    println!("{verb} {} records of ended sandboxes", swept.records);
    println!(
        "{verb} {} of disks made in advance",
        show_bytes(swept.disk_bytes)
    );
    Ok(ExitCode::SUCCESS)
}
