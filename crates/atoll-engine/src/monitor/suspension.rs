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
//! meanwhile is lost, as one that runs would be. Under gVisor what a sandbox has written is
//! part of its memory, so there it is suspended with that on disk ([`checkpoint`]) or not at
//! all; and it goes on where it was instead of booting. The image stays until somebody says
//! that it runs on as it should.

use std::io;
use std::path::Path;

use super::assemble::{self, Running, Runsc, make_lifeline};
use super::checkpoint::{self, WriteError, Writing};
use super::exhaustion::Exhaustion;
use super::message::MonitorRequest;
use crate::host::process::ProcessIdentity;
use crate::{Memory, Tier};

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

/// Why a suspended sandbox does not run on.
#[derive(Debug, thiserror::Error)]
pub(super) enum WakeError {
    /// Its memory on disk is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// It could not be started.
    #[error(transparent)]
    Failed(#[from] io::Error),
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
            // As before it was woken up.
            Tier::Gvisor if self.image.is_some() => {}
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

    /// Ends its processes and keeps their memory on disk. When it fails, it runs on. This
    /// process must have one thread.
    pub(super) fn checkpoint(&mut self, request: &MonitorRequest) -> Result<(), WriteError> {
        match &self.phase {
            Phase::Awake => {}
            Phase::Suspended(_) => return Ok(()),
            Phase::Halted => return Err(io::Error::other("its processes have ended").into()),
        }
        // Writing another one begins with the removal of this.
        self.image = None;
        let writing = Writing::new(self.runsc(request)?, self.bytes_to_write()?)?;
        let watcher = ProcessIdentity::current()?;
        self.lend()?;
        let image = checkpoint::write(&writing, &request.config.home, &request.spec.id)?;
        self.image = Some(image);
        // From here on its memory is safe, however long its processes take to end.
        self.phase = Phase::Suspended(watcher);
        Ok(self.end_processes()?)
    }

    /// Writes its memory into `directory`, which does not exist, and lets it run on, also when
    /// that fails. This process must have one thread.
    pub(super) fn write_memory(
        &mut self,
        request: &MonitorRequest,
        directory: &Path,
    ) -> Result<Memory, WriteError> {
        if self.phase != Phase::Awake {
            return Err(io::Error::other("it does not run").into());
        }
        let MonitorRequest { config, spec, .. } = request;
        if !spec.guest(config).is_dir() {
            let text = "the files of its guest were removed: nothing could begin with its memory";
            return Err(io::Error::other(text).into());
        }
        let runsc = self.runsc(request)?;
        let writing = Writing::new(runsc, self.bytes_to_write()?)?;
        self.lend()?;
        let take_back = || {
            if let Some(exhaustion) = &self.started.exhaustion {
                exhaustion.take_back();
            }
        };
        checkpoint::write_and_go_on(&writing, directory, take_back)?;
        Ok(Memory::of(directory, runsc.mark()?, config, spec)?)
    }

    /// Its memory, and what it has written to its disk: under gVisor that is part of it. What
    /// is free again may still count.
    fn bytes_to_write(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.foundation.disk)?;
        let files = disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize;
        Ok(files.saturating_add(self.foundation.cgroup.memory_without_files_bytes()))
    }

    fn lend(&self) -> io::Result<()> {
        let exhaustion = self.started.exhaustion.as_ref();
        exhaustion.map_or(Ok(()), Exhaustion::lend)
    }

    /// How its memory is written.
    fn runsc(&self, request: &MonitorRequest) -> io::Result<&Runsc> {
        let missing = || {
            let tier = request.tier;
            io::Error::other(format!("the {tier} tier cannot keep memory on disk"))
        };
        self.started.runsc.as_ref().ok_or_else(missing)
    }

    /// Lets it run on: with the memory on disk, or by booting it again. When it fails, it is
    /// suspended as before. This process must have one thread.
    pub(super) fn wake(&mut self, request: &MonitorRequest) -> Result<(), WakeError> {
        match &self.phase {
            Phase::Awake => return Ok(()),
            Phase::Suspended(_) => {}
            Phase::Halted => return Err(io::Error::other("its processes have ended").into()),
        }
        let (lease, foundation) = (&self.lease, &self.foundation);
        let (guest_input, lifeline) = make_lifeline()?;
        let started = match &self.image {
            Some(image) => {
                image.check().map_err(WakeError::Damaged)?;
                // If they took too long before.
                self.end_processes()?;
                let earlier = &self.started;
                assemble::restore(request, lease, foundation, earlier, image, guest_input)
            }
            None => assemble::boot_again(request, lease, foundation, guest_input),
        };
        self.started = started.map_err(|failure| match self.end_processes() {
            Ok(()) => io::Error::other(failure.what),
            Err(error) => io::Error::other(format!(
                "{}; and what is left of it stays: {error}",
                failure.what
            )),
        })?;
        self.lifeline = lifeline;
        self.phase = Phase::Awake;
        if self.image.is_some() {
            assemble::tell_restored(&self.lifeline);
        }
        Ok(())
    }

    /// Forgets the memory on disk of one that runs.
    pub(super) fn settle(&mut self, request: &MonitorRequest) -> io::Result<()> {
        if self.phase == Phase::Awake && self.image.take().is_some() {
            checkpoint::remove(&request.config.home, &request.spec.id)?;
        }
        Ok(())
    }

    fn end_processes(&self) -> io::Result<()> {
        self.foundation.cgroup.kill()?;
        // The first of them, which nobody else waits for any more.
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
        self.foundation.cgroup.remove()
    }
}
