//! `atoll gc`: what is not needed any more.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use atoll_control::templates::{TemplateCatalog, layers_in_use};
use atoll_engine::{Swept, sweep, sweep_preview};
use serde::Serialize;

use crate::arguments::GcArguments;
use crate::home::{Home, require_root};
use crate::quantity::show_bytes;

/// What was removed, or would be.
#[derive(Serialize)]
struct Collected {
    #[serde(flatten)]
    swept: Swept,
    /// Layers that no template and no sandbox has.
    layers: usize,
    /// Logs of builds, and guests of earlier versions.
    files: usize,
}

pub(crate) async fn gc(home: &Home, arguments: &GcArguments) -> anyhow::Result<ExitCode> {
    require_root()?;
    let catalog = TemplateCatalog::open(home.path())?;
    let stale = stale_files(home, arguments.older_than)?;
    let collected = if arguments.dry_run {
        Collected {
            swept: sweep_preview(home.path(), arguments.older_than)
                .context("cannot look around")?,
            layers: catalog.garbage(&layers_in_use()?)?.len(),
            files: stale.len(),
        }
    } else {
        for path in &stale {
            let is_layer = path.is_dir();
            let removed = if is_layer {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
            removed.with_context(|| format!("cannot remove `{}`", path.display()))?;
        }
        Collected {
            swept: sweep(home.path(), arguments.older_than).context("cannot clean up")?,
            layers: catalog.collect_garbage(&layers_in_use).await?.len(),
            files: stale.len(),
        }
    };
    if arguments.json {
        println!("{}", serde_json::to_string(&collected)?);
        return Ok(ExitCode::SUCCESS);
    }
    let verb = if arguments.dry_run {
        "would remove"
    } else {
        "removed"
    };
    println!(
        "{verb} {} sandboxes left by interrupted runs",
        collected.swept.sandboxes
    );
    println!(
        "{verb} {} network interfaces that no sandbox has",
        collected.swept.interfaces
    );
    println!(
        "{verb} {} records of ended sandboxes",
        collected.swept.records
    );
    println!(
        "{verb} {} of disks made in advance",
        show_bytes(collected.swept.disk_bytes)
    );
    println!("{verb} {} layers that no template has", collected.layers);
    println!("{verb} {} old build logs and guests", collected.files);
    Ok(ExitCode::SUCCESS)
}

/// Logs of builds older than `age`, and guests that this binary does not carry.
fn stale_files(home: &Home, age: Duration) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let guest = home.engine_config()?.guest;
    let mut stale = entries_of(&home.guests())?;
    stale.retain(|path| *path != guest);
    let limit = SystemTime::now().checked_sub(age);
    let is_old = |path: &std::path::PathBuf| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
        limit.is_some_and(|limit| modified.is_ok_and(|modified| modified < limit))
    };
    stale.extend(
        entries_of(&home.path().join("build-logs"))?
            .into_iter()
            .filter(is_old),
    );
    Ok(stale)
}

fn entries_of(directory: &Path) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read `{}`", directory.display()))?,
    };
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
