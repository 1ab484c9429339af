//! What a home keeps for speed or for the record, and can do without.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::disk::Disks;
use crate::lease::HostLock;
use crate::record::Records;
use crate::{SandboxId, SandboxRecord, network, reconcile};

/// What a sweep does with what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing: it is looked at.
    Preview,
    /// It is removed.
    Remove,
}

/// What is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GarbageKind {
    /// A sandbox left by an interrupted run of any home, with its disk.
    Sandbox,
    /// An interface of a sandbox that nobody holds a lease for.
    Interface,
    /// The record of a sandbox that ended long ago.
    Record,
    /// Disks made in advance.
    Disk,
}

/// One thing that is not needed any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// What it is.
    pub kind: GarbageKind,
    /// Its name or path.
    pub name: String,
    /// Space that it takes on disk.
    pub bytes: u64,
}

/// Finds leftovers, records older than `age` and pooled disks of the home at
/// `home`, and removes them if `mode` says so.
///
/// # Errors
/// When something cannot be read or removed.
pub fn sweep(home: &Path, age: Duration, mode: Sweep) -> io::Result<Vec<Garbage>> {
    let mut found = dead_sandboxes(mode)?;
    found.extend(stray_interfaces(mode)?);
    found.extend(old_records(
        &Records::new(home.join("sandboxes")),
        age,
        mode,
    )?);
    let disks = Disks::new(home.join("disks"));
    for (pool, bytes) in disks.pooled()? {
        found.push(Garbage {
            kind: GarbageKind::Disk,
            name: pool.display().to_string(),
            bytes,
        });
    }
    if mode == Sweep::Remove {
        disks.drain()?;
    }
    Ok(found)
}

fn dead_sandboxes(mode: Sweep) -> io::Result<Vec<Garbage>> {
    let mut found: Vec<(SandboxId, u64)> = crate::reconcile::dead_sandboxes()?
        .into_iter()
        .map(|(id, home)| {
            let bytes = Disks::new(home.join("disks")).bytes_of(&id);
            (id, bytes)
        })
        .collect();
    if mode == Sweep::Remove {
        // Another command may have been faster, and more may have died since.
        let removed = reconcile()?;
        let bytes_of = |id: &SandboxId| {
            let known = found.iter().find(|(other, _)| other == id);
            known.map_or(0, |(_, bytes)| *bytes)
        };
        found = removed
            .into_iter()
            .map(|id| {
                let bytes = bytes_of(&id);
                (id, bytes)
            })
            .collect();
    }
    let garbage = |(id, bytes): (SandboxId, u64)| Garbage {
        kind: GarbageKind::Sandbox,
        name: id.to_string(),
        bytes,
    };
    Ok(found.into_iter().map(garbage).collect())
}

fn stray_interfaces(mode: Sweep) -> io::Result<Vec<Garbage>> {
    let lock = HostLock::take()?;
    let mut found = Vec::new();
    for slot in strays(&lock)? {
        if mode == Sweep::Remove {
            network::remove_stray(slot).map_err(io::Error::other)?;
        }
        found.push(Garbage {
            kind: GarbageKind::Interface,
            name: format!("slot {slot}"),
            bytes: 0,
        });
    }
    Ok(found)
}

fn old_records(records: &Records, age: Duration, mode: Sweep) -> io::Result<Vec<Garbage>> {
    let mut found = Vec::new();
    for record in records.older_than(age)? {
        let bytes = records.bytes_of(&record.id);
        if mode == Sweep::Remove {
            records.forget(&record.id)?;
        }
        found.push(Garbage {
            kind: GarbageKind::Record,
            name: record.id.to_string(),
            bytes,
        });
    }
    Ok(found)
}

/// Slots with an interface and without a lease. Under the lock: a lease comes before its interface.
fn strays(lock: &HostLock) -> io::Result<Vec<u16>> {
    let leased: Vec<u16> = lock.leases()?.iter().map(|lease| lease.slot).collect();
    network::strays(&leased).map_err(io::Error::other)
}

/// Every sandbox this home knows, the oldest first.
///
/// # Errors
/// When the records cannot be read.
pub fn sandboxes(home: &Path) -> io::Result<Vec<SandboxRecord>> {
    Records::new(home.join("sandboxes")).list()
}

/// What the home at `home` knows of one sandbox, also after its end.
///
/// # Errors
/// When the record cannot be read.
pub fn sandbox_record(home: &Path, id: &SandboxId) -> io::Result<Option<SandboxRecord>> {
    Records::new(home.join("sandboxes")).get(id)
}

/// Layers on which sandboxes of any home stand now.
///
/// # Errors
/// When the leases cannot be read.
pub fn layers_in_use() -> io::Result<BTreeSet<PathBuf>> {
    let leases = HostLock::take()?.leases()?;
    Ok(leases.into_iter().flat_map(|lease| lease.layers).collect())
}
