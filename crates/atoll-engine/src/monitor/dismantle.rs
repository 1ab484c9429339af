//! Taking a sandbox away: by its monitor at its end, or by any later start
//! of Atoll when the monitor was killed. Each step can be repeated.
//!
//! ```text
//! kill → record (with what the rules counted) → network → mounts → cgroup, disk → lease
//! ```
//!
//! The network goes as early as it can: the kernel frees what the rules knew of
//! the sandbox while the mounts are taken down, and nobody has to wait for it.

use std::io;
use std::path::Path;

use crate::cgroup::Cgroup;
use crate::config::EngineConfig;
use crate::disk::Disks;
use crate::host::file::remove_file;
use crate::host::mount;
use crate::lease::{HostLock, Lease};
use crate::monitor::checkpoint;
use crate::network::{self, HostNetwork, Interface};
use crate::record::Records;
use crate::{NetworkUsage, Outcome};

/// Ends and removes the sandbox of `lease`, as its monitor.
pub(crate) fn dismantle(config: &EngineConfig, lease: &Lease, outcome: &Outcome) -> io::Result<()> {
    let interface = Interface::DiesWithItsNamespace;
    let disconnected = disconnect(&config.home, lease, outcome, interface)?;
    for name in ["rootfs", "disk", "scratch"] {
        mount::remove(&disconnected.lease.dir().join(name))?;
    }
    remove(&config.home, &disconnected, outcome)
}

/// Removes what outlived the monitor of `lease`, whose mounts ended with it.
pub(crate) fn release(home: &Path, lease: &Lease, outcome: &Outcome) -> io::Result<()> {
    let disconnected = disconnect(home, lease, outcome, Interface::MayBeHeld)?;
    remove(home, &disconnected, outcome)
}

/// A sandbox without processes and network.
struct Disconnected {
    lease: Lease,
    /// Its end, if there was no room to write it down.
    unwritten: Option<Option<NetworkUsage>>,
}

/// Ends the processes, writes the end down, and takes the network away.
fn disconnect(
    home: &Path,
    lease: &Lease,
    outcome: &Outcome,
    interface: Interface,
) -> io::Result<Disconnected> {
    Cgroup::of(&lease.sandbox)?.kill()?;
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
    let records = Records::new(home.join("sandboxes"));
    let unwritten = match records.end(&lease.sandbox, outcome, usage.clone()) {
        Ok(()) => None,
        // What it leaves on a full disk is what makes room.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Some(usage),
        Err(error) => return Err(error),
    };
    let Some(network) = network else {
        return Ok(Disconnected {
            lease: lease.clone(),
            unwritten,
        });
    };
    let lock = HostLock::take()?;
    network::give_back(lease.slot, &network.range, interface).map_err(io::Error::other)?;
    // From here on nobody makes it known to the rules again.
    let lease = Lease {
        network: None,
        ..lease.clone()
    };
    lock.update(&lease)?;
    release_unused_host(&lock, here)?;
    Ok(Disconnected { lease, unwritten })
}

/// Removes the rest. The lease goes last.
fn remove(home: &Path, disconnected: &Disconnected, outcome: &Outcome) -> io::Result<()> {
    let Disconnected { lease, unwritten } = disconnected;
    Cgroup::of(&lease.sandbox)?.remove()?;
    remove_file(&Disks::new(home.join("disks")).image(&lease.sandbox))?;
    checkpoint::remove(home, &lease.sandbox)?;
    if let Some(usage) = unwritten {
        Records::new(home.join("sandboxes")).end(&lease.sandbox, outcome, usage.clone())?;
    }
    let lock = HostLock::take()?;
    // Again, for whoever was killed between the two steps above.
    release_unused_host(&lock, HostNetwork::current()?)?;
    if !lock.has_lease(|other| other.slot != lease.slot)? {
        Cgroup::remove_parent()?;
    }
    lock.release(lease)
}

/// Undoes what sandboxes share on this host, when none of them has a network any more.
fn release_unused_host(lock: &HostLock, here: HostNetwork) -> io::Result<()> {
    let is_here = |lease: &Lease| {
        lease
            .network
            .as_ref()
            .is_some_and(|network| network.host == here)
    };
    if lock.has_lease(is_here)? {
        return Ok(());
    }
    network::release_host().map_err(io::Error::other)
}
