//! A sandbox without processes: its monitor keeps its lease, its disk, its network and
//! what it takes to boot it again.
//!
//! ```text
//! awake ── kill, cgroup away ──▶ suspended ── the container again, on the same disk ──▶ awake
//!                                    ▲                                  │
//!                                    └── kill, cgroup away ◀── fails ───┘
//! ```
//!
//! Only the monitor knows that its sandbox is suspended: one whose monitor is killed
//! meanwhile is lost, as one that runs would be. Under gVisor there is no such thing: what
//! a sandbox has written is in a file that ends with gVisor's processes.

use std::io;

use super::assemble::{self, Running, make_lifeline};
use super::message::MonitorRequest;
use crate::Tier;
use crate::host::process::ProcessIdentity;

/// Where a sandbox stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its processes run, or are frozen.
    Awake,
    /// They were ended, and it will never have others.
    Halted,
    /// They were ended, and this process, the monitor, can start others.
    Suspended(ProcessIdentity),
}

impl Running {
    /// Ends its processes and keeps the rest. When it fails, it runs on, or has ended and is
    /// found to have.
    pub(super) fn suspend(&mut self, request: &MonitorRequest) -> io::Result<()> {
        match &self.phase {
            Phase::Awake => {}
            Phase::Suspended(_) => return Ok(()),
            Phase::Halted => return Err(io::Error::other("its processes have ended")),
        }
        match request.tier {
            Tier::Container => {}
            tier @ (Tier::Gvisor | Tier::Microvm) => {
                return Err(io::Error::other(format!(
                    "the {tier} tier cannot keep files without memory"
                )));
            }
        }
        let watcher = ProcessIdentity::current()?;
        self.end_processes()?;
        self.phase = Phase::Suspended(watcher);
        Ok(())
    }

    /// Boots it again. When it fails, it is suspended as before. This process must have one
    /// thread.
    pub(super) fn wake(&mut self, request: &MonitorRequest) -> io::Result<()> {
        match &self.phase {
            Phase::Awake => return Ok(()),
            Phase::Suspended(_) => {}
            Phase::Halted => return Err(io::Error::other("its processes have ended")),
        }
        let (guest_input, lifeline) = make_lifeline()?;
        let booted = assemble::boot_again(request, &self.lease, &self.foundation, guest_input);
        self.started = booted.map_err(|failure| match self.end_processes() {
            Ok(()) => io::Error::other(failure.what),
            Err(error) => io::Error::other(format!(
                "{}; and what is left of it stays: {error}",
                failure.what
            )),
        })?;
        self.lifeline = lifeline;
        self.phase = Phase::Awake;
        Ok(())
    }

    fn end_processes(&self) -> io::Result<()> {
        self.foundation.cgroup.kill()?;
        // The first of them, which nobody else waits for any more.
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
        self.foundation.cgroup.remove()
    }
}
