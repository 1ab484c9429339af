//! Hears that a sandbox is out of memory before the kernel kills for it, and
//! that it is out of processes.
//!
//! Under gVisor the processes inside are not the host's, and the kernel would
//! often pick gVisor itself, and so everything. Version 1 of cgroups can be
//! told to let the group wait instead: then there is a moment in which the
//! guest can be asked to end the biggest of its processes. Version 2 has no
//! such wait; there the kernel kills, and the outcome says so.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::event::{EventfdFlags, eventfd};

use super::{Bounds, Cgroup, CgroupLayout, read_keyed};

/// What a sandbox gets at once on loan while the guest makes room.
const HEADROOM_BYTES: u64 = 64 * 1024 * 1024;

/// Becomes readable when a sandbox waits for memory.
#[derive(Debug)]
pub(crate) struct MemoryAlarm {
    cgroup: Cgroup,
    bounds: Bounds,
    event: OwnedFd,
    /// The kernel ties the event to this file.
    _control: File,
}

impl MemoryAlarm {
    /// Lets `cgroup` wait for memory instead of killing, where the kernel can.
    pub(crate) fn set(cgroup: &Cgroup, bounds: &Bounds) -> io::Result<Option<Self>> {
        if cgroup.layout == CgroupLayout::V2 {
            return Ok(None);
        }
        let path = cgroup.file("memory", "memory.oom_control");
        let control = File::open(&path)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        fs::write(
            cgroup.file("memory", "cgroup.event_control"),
            format!("{} {}", event.as_raw_fd(), control.as_raw_fd()),
        )?;
        fs::write(&path, "1")?;
        Ok(Some(Self {
            cgroup: cgroup.clone(),
            bounds: *bounds,
            event,
            _control: control,
        }))
    }

    /// Takes note of the event; whether the sandbox really waits for memory.
    pub(crate) fn heard(&self) -> bool {
        let mut count = [0_u8; 8];
        // Somebody may have taken it; the state is what counts.
        let _ = rustix::io::read(&self.event, &mut count);
        self.is_waiting()
    }

    /// Whether the sandbox waits for memory now.
    pub(crate) fn is_waiting(&self) -> bool {
        read_keyed(
            &self.cgroup.file("memory", "memory.oom_control"),
            "under_oom",
        ) == Some(1)
    }

    /// How much of its memory only waits to be written to its disk: that
    /// becomes free without anybody's end.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        let stat = self.cgroup.file("memory", "memory.stat");
        ["total_dirty", "total_writeback"]
            .iter()
            .filter_map(|key| read_keyed(&stat, key))
            .sum()
    }

    /// Most loans at a time.
    pub(crate) const LOANS_MAX: u64 = 4;

    /// Lends memory, so that the guest can do what it is asked for.
    pub(crate) fn lend(&self, loans: u64) -> io::Result<()> {
        self.limit(self.lent(loans).memory_bytes)
    }

    /// The bounds of the sandbox with so much on loan.
    pub(crate) fn lent(&self, loans: u64) -> Bounds {
        Bounds {
            memory_bytes: self.bounds.memory_bytes + loans * HEADROOM_BYTES,
            ..self.bounds
        }
    }

    /// Takes the loan back; fails while the sandbox needs it.
    pub(crate) fn take_back(&self) -> io::Result<()> {
        self.limit(self.bounds.memory_bytes)
    }

    fn limit(&self, bytes: u64) -> io::Result<()> {
        let memory = self.cgroup.file("memory", "memory.limit_in_bytes");
        let both = self.cgroup.file("memory", "memory.memsw.limit_in_bytes");
        // Memory alone must never exceed memory and swap together.
        let mut files = vec![memory];
        if both.exists() {
            if bytes > self.bounds.memory_bytes {
                files.insert(0, both);
            } else {
                files.push(both);
            }
        }
        files
            .iter()
            .try_for_each(|file| fs::write(file, bytes.to_string()))
    }
}

impl AsFd for MemoryAlarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Has something exceptional to tell when a group was refused a process.
#[derive(Debug)]
pub(crate) struct ProcessAlarm {
    events: File,
}

impl ProcessAlarm {
    /// Listens to `cgroup`.
    pub(crate) fn set(cgroup: &Cgroup) -> io::Result<Self> {
        let alarm = Self {
            events: File::open(cgroup.file("pids", "pids.events"))?,
        };
        // Only what changes after a look is told.
        alarm.heard();
        Ok(alarm)
    }

    /// Whether a process was ever refused.
    pub(crate) fn heard(&self) -> bool {
        let mut text = [0_u8; 256];
        let length = self.events.read_at(&mut text, 0).unwrap_or(0);
        String::from_utf8_lossy(&text[..length])
            .lines()
            .filter_map(|line| line.strip_prefix("max "))
            .any(|count| count.trim() != "0")
    }
}

impl AsFd for ProcessAlarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
