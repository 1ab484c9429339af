//! What every start of Atoll does first: find what an interrupted run of any
//! home left on this host, and remove it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disks;
use crate::host::HostObject;
use crate::host::file::write_state;
use crate::host::process::boot_id;
use crate::lease::HostLock;
use crate::monitor::{checkpoint, release};
use crate::network::forget_dead_hosts;
use crate::record::Records;
use crate::{Outcome, SandboxId};

/// Removes every sandbox whose monitor is dead and returns their names.
///
/// # Errors
/// When something could not be removed; its lease stays, so whoever comes next
/// tries again.
pub fn reconcile() -> io::Result<Vec<SandboxId>> {
    let Swept { removed, failed } = sweep()?;
    match failed.into_iter().next() {
        None => Ok(removed),
        Some((id, error)) => {
            let what = format!("sandbox {id}: {error}");
            Err(io::Error::new(error.kind(), what))
        }
    }
}

/// The same for the sake of `id` alone: what could not be removed of others is
/// not its failure.
///
/// # Errors
/// When something of `id` could not be removed.
pub(crate) fn reconcile_one(id: &SandboxId) -> io::Result<()> {
    let failed = sweep()?.failed;
    failed
        .into_iter()
        .find(|(other, _)| other == id)
        .map_or(Ok(()), |(_, error)| Err(error))
}

/// What became of the sandboxes whose monitor was dead.
struct Swept {
    removed: Vec<SandboxId>,
    failed: Vec<(SandboxId, io::Error)>,
}

fn sweep() -> io::Result<Swept> {
    let lock = HostLock::take()?;
    let hosts: Vec<_> = lock
        .leases()?
        .into_iter()
        .filter_map(|lease| Some(lease.network?.host))
        .collect();
    forget_dead_hosts(&hosts)?;
    // The last that may fail as a whole: what is claimed has an owner who lives,
    // and is nobody else's to remove until it is given up.
    let dead = lock.claim_dead()?;
    drop(lock);
    let mut swept = Swept {
        removed: Vec::with_capacity(dead.len()),
        failed: Vec::new(),
    };
    for (lease, owner) in dead {
        let outcome = Outcome::Crashed {
            detail: "its monitor was killed".to_owned(),
        };
        match release(&lease.home, &lease, &outcome) {
            Ok(()) => swept.removed.push(lease.sandbox),
            Err(error) => {
                let given_up = HostLock::take().and_then(|lock| lock.give_up(&lease, &owner));
                let error = match given_up {
                    Ok(()) => error,
                    Err(also) => io::Error::new(
                        error.kind(),
                        format!("{error}; and its lease could not be given up: {also}"),
                    ),
                };
                swept.failed.push((lease.sandbox, error));
            }
        }
    }
    Ok(swept)
}

/// After a restart of the host, whose leases are gone with `/run`: removes the
/// disks that sandboxes of the home at `home` left and closes their records.
///
/// # Errors
/// When something could not be removed; the next start tries again.
pub fn reconcile_home(home: &Path) -> io::Result<usize> {
    let marker = home.join("boot.json");
    let boot = boot_id()?;
    let seen: Option<String> = fs::read(&marker)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    if seen.as_deref() == Some(boot.as_str()) {
        return Ok(0);
    }
    // Under the lock: whatever is made for a sandbox is made after its lease.
    let lock = HostLock::take()?;
    let known: BTreeSet<SandboxId> = lock
        .leases()?
        .into_iter()
        .map(|lease| lease.sandbox)
        .collect();
    let removed = Disks::new(home.join("disks")).remove_unknown(&known)?;
    checkpoint::remove_unknown(home, &known)?;
    let records = Records::new(home.join("sandboxes"));
    let outcome = Outcome::Crashed {
        detail: "the host was restarted".to_owned(),
    };
    for record in records.list()? {
        if record.ended.is_none() && !known.contains(&record.id) {
            records.end(&record.id, &outcome, None)?;
        }
    }
    write_state(HostObject::BootMarker, &marker, &boot)?;
    Ok(removed)
}

/// Sandboxes whose monitor is dead, and their homes, without touching them.
pub(crate) fn dead_sandboxes() -> io::Result<Vec<(SandboxId, PathBuf)>> {
    let leases = HostLock::take()?.leases()?;
    Ok(leases
        .into_iter()
        .filter(|lease| !lease.owner.is_alive())
        .map(|lease| (lease.sandbox, lease.home))
        .collect())
}
