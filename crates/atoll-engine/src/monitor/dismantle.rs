//! Taking a sandbox away: by its monitor at its end, or by any later start
//! of Atoll when the monitor was killed. Each step can be repeated.

use std::io;
use std::path::Path;

use crate::cgroup::Cgroup;
use crate::config::EngineConfig;
use crate::disk::Disks;
use crate::host::file::remove_file;
use crate::host::mount;
use crate::lease::{HostLock, Lease};
use crate::record::Records;
use crate::{NetworkMode, Outcome, network};

/// Ends and removes the sandbox of `lease`, as its monitor.
pub(crate) fn dismantle(config: &EngineConfig, lease: &Lease, outcome: &Outcome) -> io::Result<()> {
    kill(lease)?;
    for name in ["rootfs", "disk", "scratch"] {
        mount::remove(&lease.dir().join(name))?;
    }
    release(&config.home, lease, outcome)
}

fn kill(lease: &Lease) -> io::Result<()> {
    Cgroup::of(&lease.sandbox)?.kill()
}

/// Removes what outlives the processes of a sandbox. The lease goes last.
pub(crate) fn release(home: &Path, lease: &Lease, outcome: &Outcome) -> io::Result<()> {
    let cgroup = Cgroup::of(&lease.sandbox)?;
    cgroup.kill()?;
    Records::new(home.join("sandboxes")).end(&lease.sandbox, outcome)?;
    cgroup.remove()?;
    if lease.network == NetworkMode::Full {
        network::reap(lease.slot).map_err(io::Error::other)?;
    }
    remove_file(&Disks::new(home.join("disks")).image(&lease.sandbox))?;
    let lock = HostLock::take()?;
    let others: Vec<Lease> = lock
        .leases()?
        .into_iter()
        .filter(|other| other.slot != lease.slot)
        .collect();
    if !others
        .iter()
        .any(|other| other.network == NetworkMode::Full)
    {
        network::release_host().map_err(io::Error::other)?;
    }
    if others.is_empty() {
        Cgroup::remove_parent()?;
    }
    lock.release(lease)
}
