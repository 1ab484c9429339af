//! The way to sandboxes that another process started: a server that was
//! started again finds those of the one before.
//!
//! A lease names the monitor of a sandbox and proves that it lives; the
//! monitor introduces its sandbox. Nothing of it is kept in files, so nothing
//! can be out of date.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lease::{HostLock, Lease};
use crate::monitor::control_path;
use crate::monitor::message::{Answer, Question};
use crate::monitored::{MonitoredSandbox, ask};
use crate::record::Records;
use crate::{AttachError, Attachment, Sandbox, SandboxId, Tier};

/// How long a sandbox may take that was not complete yet when it was found.
/// A monitor that cannot report to who asked for it removes it again.
const INTRODUCTION_BOUND: Duration = Duration::from_secs(60);
/// Pause between two looks at a monitor that does not listen yet.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// A sandbox that has a living monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningSandbox {
    /// Its name.
    pub id: SandboxId,
    /// How it is kept apart.
    pub tier: Tier,
    /// Whether it ends with the process that asked for it.
    pub attachment: Attachment,
}

/// The sandboxes of the home at `home` whose monitor lives, also those that
/// are still being made or taken away.
///
/// # Errors
/// When the leases cannot be read.
pub fn running_sandboxes(home: &Path) -> io::Result<Vec<RunningSandbox>> {
    Ok(leases(home)?
        .map(|lease| RunningSandbox {
            id: lease.sandbox,
            tier: lease.tier,
            attachment: lease.attachment,
        })
        .collect())
}

/// The sandbox `id` of the home at `home`. One that is still being made is
/// waited for.
///
/// # Errors
/// [`AttachError::Gone`] when it does not run.
pub fn attach(home: &Path, id: &SandboxId) -> Result<Box<dyn Sandbox>, AttachError> {
    attach_within(home, id, INTRODUCTION_BOUND)
}

/// The same for who would rather ask again: a monitor that writes memory to disk answers
/// nobody meanwhile.
///
/// # Errors
/// As [`attach`].
pub fn attach_within(
    home: &Path,
    id: &SandboxId,
    bound: Duration,
) -> Result<Box<dyn Sandbox>, AttachError> {
    let start = Instant::now();
    loop {
        let lease = leases(home)
            .map_err(AttachError::Host)?
            .find(|lease| lease.sandbox == *id)
            .ok_or(AttachError::Gone)?;
        match introduce(&lease, bound) {
            Ok(sandbox) => return Ok(Box::new(sandbox)),
            // It does not listen yet, or not any more: its lease tells which.
            Err(Unintroduced::NotListening) if start.elapsed() < bound => {
                std::thread::sleep(LOOK_PAUSE);
            }
            Err(Unintroduced::NotListening) => {
                let what = format!("it does not listen within {bound:?}");
                return Err(AttachError::Monitor(what));
            }
            Err(Unintroduced::Failed(what)) => return Err(AttachError::Monitor(what)),
        }
    }
}

/// Leases of a home whose owner lives.
fn leases(home: &Path) -> io::Result<impl Iterator<Item = Lease>> {
    let home = home.to_owned();
    let leases = HostLock::take()?.leases()?;
    Ok(leases
        .into_iter()
        .filter(move |lease| lease.home == home && lease.owner.is_alive()))
}

enum Unintroduced {
    NotListening,
    Failed(String),
}

fn introduce(lease: &Lease, bound: Duration) -> Result<MonitoredSandbox, Unintroduced> {
    let ready = match ask(&control_path(lease), &Question::Introduce, bound) {
        Ok(Some(Answer::Ready(ready))) => ready,
        Ok(Some(other)) => return Err(Unintroduced::Failed(format!("{other:?}"))),
        Ok(None) => return Err(Unintroduced::NotListening),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => return Err(Unintroduced::NotListening),
            _ => return Err(Unintroduced::Failed(error.to_string())),
        },
    };
    let records = Records::new(lease.home.join("sandboxes"));
    let id = lease.sandbox.clone();
    // The monitor named a process of now; one that has ended since is not mistaken for another.
    MonitoredSandbox::attach(id, lease.tier, records, &ready, None, None)
        .map_err(|_| Unintroduced::NotListening)
}
