//! Taking a sandbox away: by its monitor at its end, or by any later start
//! of Atoll when the monitor was killed. Each step can be repeated.

use std::io;
use std::path::Path;

use crate::Outcome;
use crate::cgroup::Cgroup;
use crate::config::EngineConfig;
use crate::disk::Disks;
use crate::host::file::remove_file;
use crate::host::mount;
use crate::lease::{HostLock, Lease};
use crate::network::{self, HostNetwork, Interface};
use crate::record::Records;

/// Ends and removes the sandbox of `lease`, as its monitor.
pub(crate) fn dismantle(config: &EngineConfig, lease: &Lease, outcome: &Outcome) -> io::Result<()> {
    kill(lease)?;
    for name in ["rootfs", "disk", "scratch"] {
        mount::remove(&lease.dir().join(name))?;
    }
    release(
        &config.home,
        lease,
        outcome,
        Interface::DiesWithItsNamespace,
    )
}

fn kill(lease: &Lease) -> io::Result<()> {
    Cgroup::of(&lease.sandbox)?.kill()
}

/// Removes what outlives the processes of a sandbox. The lease goes last.
pub(crate) fn release(
    home: &Path,
    lease: &Lease,
    outcome: &Outcome,
    interface: Interface,
) -> io::Result<()> {
    let cgroup = Cgroup::of(&lease.sandbox)?;
    cgroup.kill()?;
    let here = HostNetwork::current()?;
    // Another network namespace is another host: what it held of this sandbox
    // ended with the sandbox, or is replaced by the next one there.
    let network = lease
        .network
        .as_ref()
        .filter(|network| network.host == here);
    let usage = match network {
        Some(_) => network::usage(lease.slot).map_err(io::Error::other)?,
        None => None,
    };
    Records::new(home.join("sandboxes")).end(&lease.sandbox, outcome, usage)?;
    cgroup.remove()?;
    if let Some(network) = network {
        network::give_back(lease.slot, &network.range, interface).map_err(io::Error::other)?;
    }
    remove_file(&Disks::new(home.join("disks")).image(&lease.sandbox))?;
    let lock = HostLock::take()?;
    let others: Vec<Lease> = lock
        .leases()?
        .into_iter()
        .filter(|other| other.slot != lease.slot)
        .collect();
    let is_used = others
        .iter()
        .filter_map(|other| other.network.as_ref())
        .any(|network| network.host == here);
    if !is_used {
        network::release_host().map_err(io::Error::other)?;
    }
    if others.is_empty() {
        Cgroup::remove_parent()?;
    }
    lock.release(lease)
}
