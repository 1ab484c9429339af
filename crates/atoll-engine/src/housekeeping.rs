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

/// What [`sweep`] found.
#[derive(Debug, Default, Serialize)]
pub struct Swept {
    /// Sandboxes left by interrupted runs of any home.
    pub sandboxes: usize,
    /// Interfaces of sandboxes that nobody holds a lease for.
    pub interfaces: usize,
    /// Records of sandboxes that ended long ago.
    pub records: usize,
    /// Bytes of disks made in advance.
    pub disk_bytes: u64,
}

/// Removes leftovers, records older than `age` and pooled disks of the home at `home`.
///
/// # Errors
/// When something cannot be removed.
pub fn sweep(home: &Path, age: Duration) -> io::Result<Swept> {
    Ok(Swept {
        sandboxes: reconcile()?.len(),
        interfaces: remove_strays()?,
        records: Records::new(home.join("sandboxes")).forget(age)?,
        disk_bytes: Disks::new(home.join("disks")).drain()?,
    })
}

/// What [`sweep`] would find, without touching it.
///
/// # Errors
/// When it cannot be read.
pub fn sweep_preview(home: &Path, age: Duration) -> io::Result<Swept> {
    Ok(Swept {
        sandboxes: crate::reconcile::dead_sandboxes()?.len(),
        interfaces: strays(&HostLock::take()?)?.len(),
        records: Records::new(home.join("sandboxes")).older_than(age)?.len(),
        disk_bytes: Disks::new(home.join("disks")).pooled_bytes()?,
    })
}

/// Slots with an interface and without a lease. Under the lock: a lease comes before its interface.
fn strays(lock: &HostLock) -> io::Result<Vec<u16>> {
    let leased: Vec<u16> = lock.leases()?.iter().map(|lease| lease.slot).collect();
    network::strays(&leased).map_err(io::Error::other)
}

fn remove_strays() -> io::Result<usize> {
    let lock = HostLock::take()?;
    let strays = strays(&lock)?;
    for slot in &strays {
        network::remove_stray(*slot).map_err(io::Error::other)?;
    }
    Ok(strays.len())
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
