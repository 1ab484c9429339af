//! `atoll gc`: what is not needed any more.
//!
//! What is removed and what `--dry-run` shows is found by the same code.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use atoll_control::templates::{TemplateCatalog, layers_in_use};
use atoll_engine::{Garbage, GarbageKind, Sweep, sweep};
use serde::Serialize;

use crate::arguments::GcArguments;
use crate::home::{Home, require_root};
use crate::quantity::show_bytes;

/// What was removed, or would be.
#[derive(Serialize)]
struct Collected {
    sandboxes: usize,
    interfaces: usize,
    records: usize,
    disk_bytes: u64,
    /// Layers that no template and no sandbox has.
    layers: usize,
    /// Logs of builds, and guests of earlier versions.
    files: usize,
    /// Space of all of it.
    bytes: u64,
    /// Each thing.
    items: Vec<Item>,
}

/// One thing.
#[derive(Serialize)]
struct Item {
    kind: &'static str,
    name: String,
    bytes: u64,
}

const LAYER: &str = "layer";
const FILE: &str = "file";

const fn kind_name(kind: GarbageKind) -> &'static str {
    match kind {
        GarbageKind::Sandbox => "sandbox",
        GarbageKind::Interface => "interface",
        GarbageKind::Record => "record",
        GarbageKind::Disk => "disk",
    }
}

impl Collected {
    fn of(swept: Vec<Garbage>, others: Vec<Item>) -> Self {
        let count = |kind| swept.iter().filter(|one| one.kind == kind).count();
        let disks = swept.iter().filter(|one| one.kind == GarbageKind::Disk);
        let others_count = |kind| others.iter().filter(|one| one.kind == kind).count();
        let mut collected = Self {
            sandboxes: count(GarbageKind::Sandbox),
            interfaces: count(GarbageKind::Interface),
            records: count(GarbageKind::Record),
            disk_bytes: disks.map(|one| one.bytes).sum(),
            layers: others_count(LAYER),
            files: others_count(FILE),
            bytes: 0,
            items: Vec::new(),
        };
        let swept = swept.into_iter().map(|one| Item {
            kind: kind_name(one.kind),
            name: one.name,
            bytes: one.bytes,
        });
        collected.items = swept.chain(others).collect();
        collected.bytes = collected.items.iter().map(|item| item.bytes).sum();
        collected
    }
}

pub(crate) async fn gc(home: &Home, arguments: &GcArguments) -> anyhow::Result<ExitCode> {
    require_root()?;
    let mode = if arguments.dry_run {
        Sweep::Preview
    } else {
        Sweep::Remove
    };
    let mut others = files(home, arguments.older_than, mode)?;
    let swept = sweep(home.path(), arguments.older_than, mode).context("cannot clean up")?;
    others.extend(layers(home, mode).await?);
    let collected = Collected::of(swept, others);
    if arguments.json {
        println!("{}", serde_json::to_string(&collected)?);
        return Ok(ExitCode::SUCCESS);
    }
    show(&collected, mode);
    Ok(ExitCode::SUCCESS)
}

fn show(collected: &Collected, mode: Sweep) {
    let verb = match mode {
        Sweep::Preview => "would remove",
        Sweep::Remove => "removed",
    };
    println!(
        "{verb} {} sandboxes left by interrupted runs",
        collected.sandboxes
    );
    println!(
        "{verb} {} network interfaces that no sandbox has",
        collected.interfaces
    );
    println!("{verb} {} records of ended sandboxes", collected.records);
    println!(
        "{verb} {} of disks made in advance",
        show_bytes(collected.disk_bytes)
    );
    println!("{verb} {} layers that no template has", collected.layers);
    println!("{verb} {} old build logs and guests", collected.files);
    println!("{verb} {} in all", show_bytes(collected.bytes));
    if mode == Sweep::Preview {
        for item in &collected.items {
            println!("  {} {} ({})", item.kind, item.name, show_bytes(item.bytes));
        }
    }
}

/// Layers that no template has and no sandbox uses.
async fn layers(home: &Home, mode: Sweep) -> anyhow::Result<Vec<Item>> {
    let catalog = TemplateCatalog::open(home.path())?;
    let store = catalog.layers();
    let mut found = BTreeMap::new();
    for layer in catalog.garbage(&layers_in_use()?)? {
        let blob = store.info(&layer)?.map_or(0, |info| info.blob_bytes);
        let bytes = space_below(&store.path(&layer)).saturating_add(blob);
        found.insert(layer, bytes);
    }
    if mode == Sweep::Remove {
        // A build may have begun meanwhile, and uses some of them again.
        let removed = catalog.collect_garbage(&layers_in_use).await?;
        found.retain(|layer, _| removed.contains(layer));
    }
    let item = |(layer, bytes): (atoll_store::Digest, u64)| Item {
        kind: LAYER,
        name: layer.to_string(),
        bytes,
    };
    Ok(found.into_iter().map(item).collect())
}

/// Logs of builds older than `age`, and guests that this binary does not carry.
fn files(home: &Home, age: Duration, mode: Sweep) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    for path in stale_files(home, age)? {
        let bytes = space_below(&path);
        if mode == Sweep::Remove {
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.with_context(|| format!("cannot remove `{}`", path.display()))?;
        }
        items.push(Item {
            kind: FILE,
            name: path.display().to_string(),
            bytes,
        });
    }
    Ok(items)
}

/// Space that a file, or a directory with all that is in it, takes on disk.
fn space_below(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    let below: u64 = if metadata.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| space_below(&entry.path())).sum()
    } else {
        0
    };
    below.saturating_add(metadata.blocks() * 512)
}

/// Paths of those.
fn stale_files(home: &Home, age: Duration) -> anyhow::Result<Vec<PathBuf>> {
    let guest = home.engine_config()?.guest;
    let mut stale = entries_of(&home.guests())?;
    let snapshots = TemplateCatalog::open(home.path())?.snapshots()?;
    let memory = snapshots
        .iter()
        .filter_map(|one| one.template.memory.as_ref());
    let needed: Vec<&Path> = memory.map(|memory| memory.image.guest()).collect();
    stale.retain(|path| *path != guest && !needed.contains(&path.as_path()));
    let limit = SystemTime::now().checked_sub(age);
    let is_old = |path: &PathBuf| {
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

fn entries_of(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read `{}`", directory.display()))?,
    };
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
