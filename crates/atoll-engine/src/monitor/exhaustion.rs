//! What the monitor does when a sandbox under gVisor has used up its memory or
//! its processes. The kernel cannot be left to it: it sees gVisor and not the
//! processes inside, and would take the whole sandbox or let it hang.

use std::cell::Cell;
use std::io::{self, PipeWriter};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::cgroup::{Bounds, Cgroup, MemoryAlarm, ProcessAlarm};
use crate::{Limits, Outcome};

/// How long the guest may take to make room. A sandbox that does not get
/// below its limit by then is ended.
const ROOM_BOUND: Duration = Duration::from_secs(2);
/// How long what gVisor had on loan may take to be free again.
const RETURN_BOUND: Duration = Duration::from_millis(500);
/// How long a disk may take to write what fills the memory, before a process
/// is ended for it: in all, and without getting on.
const WRITE_BOUND: Duration = Duration::from_secs(5);
const WRITE_STALL_BOUND: Duration = Duration::from_secs(1);
/// What has to wait for the disk before the disk is waited for.
const UNWRITTEN_MIN_BYTES: u64 = 8 * 1024 * 1024;
/// Pause between two looks whether there is room.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// What the guest understands as the wish to end its biggest process.
const MAKE_ROOM: &[u8] = b"m";

/// Alarms of one sandbox, and how often room was made.
#[derive(Debug)]
pub(crate) struct Exhaustion {
    memory: Option<MemoryAlarm>,
    processes: ProcessAlarm,
    limits: Limits,
    /// Whether it has memory on loan that nobody has taken back yet.
    is_lent: Cell<bool>,
}

impl Exhaustion {
    /// Sets the alarms of `cgroup`.
    pub(crate) fn of(cgroup: &Cgroup, bounds: &Bounds, limits: &Limits) -> io::Result<Self> {
        Ok(Self {
            memory: MemoryAlarm::set(cgroup, bounds)?,
            processes: ProcessAlarm::set(cgroup)?,
            limits: limits.clone(),
            is_lent: Cell::new(false),
        })
    }

    /// Becomes readable when memory runs out.
    pub(super) fn memory(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd as _;
        self.memory.as_ref().map(MemoryAlarm::as_fd)
    }

    /// Has something exceptional when a process was refused.
    pub(super) fn processes(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.processes.as_fd()
    }

    /// Lends what gVisor itself needs while it writes memory to disk, or reads it from there.
    pub(crate) fn lend(&self) -> io::Result<()> {
        let Some(alarm) = &self.memory else {
            return Ok(());
        };
        self.is_lent.set(true);
        alarm.lend(MemoryAlarm::LOANS_MAX)
    }

    /// Takes that back, if what was used of it is free again soon. Else it stays
    /// [lent](Self::is_lent), and somebody has to [call it in](Self::call_in).
    pub(crate) fn take_back(&self) {
        let Some(alarm) = self.memory.as_ref().filter(|_| self.is_lent()) else {
            return;
        };
        let start = Instant::now();
        while start.elapsed() < RETURN_BOUND {
            if alarm.take_back().is_ok() {
                self.is_lent.set(false);
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Whether there is a loan.
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent.get()
    }

    /// What the kernel has to enforce right now, where `bounds` are those of the sandbox.
    pub(crate) fn in_force(&self, bounds: &Bounds) -> Bounds {
        match &self.memory {
            Some(alarm) if self.is_lent() => alarm.lent(MemoryAlarm::LOANS_MAX),
            _ => *bounds,
        }
    }

    /// Takes a loan back, if need be from the biggest process; the end of the sandbox if
    /// that did not help.
    pub(super) fn call_in(&self, guest: &PipeWriter) -> Room {
        self.take_back();
        if !self.is_lent() {
            return Room::Enough;
        }
        // One that does not listen is ended below.
        let _ = rustix::io::write(guest, MAKE_ROOM);
        let start = Instant::now();
        while start.elapsed() < ROOM_BOUND {
            self.take_back();
            if !self.is_lent() {
                return Room::Made;
            }
        }
        Room::None(self.memory_limit())
    }

    fn memory_limit(&self) -> Outcome {
        Outcome::MemoryLimit {
            limit_mib: self.limits.memory_mib,
        }
    }

    /// Asks the guest to end its biggest process, and lends it the memory to
    /// do so. Whether that was needed, or the end of the sandbox if it did not help.
    pub(super) fn make_room(&self, guest: &PipeWriter) -> io::Result<Room> {
        let Some(alarm) = self.memory.as_ref().filter(|alarm| alarm.heard()) else {
            return Ok(Room::Enough);
        };
        let mut loans = 1;
        alarm.lend(loans)?;
        if is_written(alarm) {
            return Ok(Room::Enough);
        }
        let start = Instant::now();
        // One that does not listen is ended below.
        let _ = rustix::io::write(guest, MAKE_ROOM);
        while start.elapsed() < ROOM_BOUND {
            std::thread::sleep(LOOK_AGAIN);
            if alarm.take_back().is_ok() && !alarm.is_waiting() {
                return Ok(Room::Made);
            }
            if alarm.is_waiting() && loans < MemoryAlarm::LOANS_MAX {
                loans += 1;
                alarm.lend(loans)?;
            }
        }
        Ok(Room::None(self.memory_limit()))
    }

    /// The end of a sandbox that gVisor cannot run any more for lack of processes.
    pub(super) fn out_of_processes(&self) -> Option<Outcome> {
        self.processes.heard().then_some(Outcome::PidsLimit {
            limit: self.limits.pids,
        })
    }
}

/// Waits while the disk writes what fills the memory; whether that was all.
fn is_written(alarm: &MemoryAlarm) -> bool {
    let start = Instant::now();
    let (mut least, mut got_on) = (u64::MAX, start);
    while start.elapsed() < WRITE_BOUND && got_on.elapsed() < WRITE_STALL_BOUND {
        let unwritten = alarm.unwritten_bytes();
        if unwritten < UNWRITTEN_MIN_BYTES {
            return false;
        }
        if unwritten < least {
            (least, got_on) = (unwritten, Instant::now());
        }
        std::thread::sleep(LOOK_AGAIN);
        // To take a loan back is to ask the kernel for clean pages.
        if alarm.take_back().is_ok() && !alarm.is_waiting() {
            return true;
        }
    }
    false
}

/// What came of a wish for memory.
pub(super) enum Room {
    /// Nothing had to be done.
    Enough,
    /// A process was ended.
    Made,
    /// There is none: the sandbox has to end.
    None(Outcome),
}
