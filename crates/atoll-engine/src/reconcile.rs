//! What every start of Atoll does first: find what an interrupted run of any
//! home left on this host, and remove it.

use std::io;

use crate::lease::HostLock;
use crate::monitor::release;
use crate::{Outcome, SandboxId};

/// Removes every sandbox whose monitor is dead and returns their names.
///
/// # Errors
/// When something could not be removed; its lease stays, so the next start
/// tries again.
pub fn reconcile() -> io::Result<Vec<SandboxId>> {
    let dead = HostLock::take()?.claim_dead()?;
    let mut removed = Vec::with_capacity(dead.len());
    let mut failure = None;
    for lease in dead {
        let outcome = Outcome::Crashed {
            detail: "its monitor was killed".to_owned(),
        };
        match release(&lease.home, &lease, &outcome) {
            Ok(()) => removed.push(lease.sandbox),
            Err(error) => {
                failure = Some(io::Error::new(
                    error.kind(),
                    format!("sandbox {}: {error}", lease.sandbox),
                ));
            }
        }
    }
    failure.map_or(Ok(removed), Err)
}

/// Sandboxes whose monitor is dead, without touching them.
pub(crate) fn dead_sandboxes() -> io::Result<Vec<SandboxId>> {
    let leases = HostLock::take()?.leases()?;
    Ok(leases
        .into_iter()
        .filter(|lease| !lease.owner.is_alive())
        .map(|lease| lease.sandbox)
        .collect())
}
