//! What the monitor does when a sandbox under gVisor has used up its memory or
//! its processes. The kernel cannot be left to it: it sees gVisor and not the
//! processes inside, and would take the whole sandbox or let it hang.

use std::io::{self, PipeWriter};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::cgroup::{Bounds, Cgroup, MemoryAlarm, ProcessAlarm};
use crate::{Limits, Outcome};

/// How long the guest may take to make room. A sandbox that does not get
/// below its limit by then is ended.
const ROOM_BOUND: Duration = Duration::from_secs(2);
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
}

impl Exhaustion {
    /// Sets the alarms of `cgroup`.
    pub(crate) fn of(cgroup: &Cgroup, bounds: &Bounds, limits: &Limits) -> io::Result<Self> {
        Ok(Self {
            memory: MemoryAlarm::set(cgroup, bounds)?,
            processes: ProcessAlarm::set(cgroup)?,
            limits: limits.clone(),
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

    /// Asks the guest to end its biggest process, and lends it the memory to
    /// do so. Whether that was needed, or the end of the sandbox if it did not help.
    pub(super) fn make_room(&self, guest: &PipeWriter) -> io::Result<Room> {
        let Some(alarm) = self.memory.as_ref().filter(|alarm| alarm.heard()) else {
            return Ok(Room::Enough);
        };
        let start = Instant::now();
        let mut loans = 1;
        alarm.lend(loans)?;
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
        Ok(Room::None(Outcome::MemoryLimit {
            limit_mib: self.limits.memory_mib,
        }))
    }

    /// The end of a sandbox that gVisor cannot run any more for lack of processes.
    pub(super) fn out_of_processes(&self) -> Option<Outcome> {
        self.processes.heard().then_some(Outcome::PidsLimit {
            limit: self.limits.pids,
        })
    }
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
