//! Processes: who one is for certain, and calls that run in a child.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, WaitOptions};
use serde::{Deserialize, Serialize};

/// A process that cannot be confused with a later one of the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id in the host's pid namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Which boot that was.
    pub boot_id: String,
}

impl ProcessIdentity {
    /// This process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// The process that has this pid now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_ticks: Stat::of(pid)?.start_ticks,
            boot_id: boot_id()?,
        })
    }

    /// Whether exactly this process still runs. One that is on its way out, or
    /// a zombie, does not: it will never do anything again.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let same_boot = boot_id().map_or(true, |boot| boot == self.boot_id);
        same_boot
            && match Stat::of(self.pid) {
                Ok(stat) => stat.start_ticks == self.start_ticks && !stat.is_ending(),
                // Only a clear answer is one: what cannot be looked at is left alone.
                Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
            }
    }
}

/// Which boot of the host this is.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// What `/proc/<pid>/stat` says of a process.
struct Stat {
    state: char,
    flags: u64,
    start_ticks: u64,
}

impl Stat {
    /// Set by the kernel as soon as a process begins to exit.
    const PF_EXITING: u64 = 0x4;

    fn of(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The command before it may itself hold spaces and brackets.
        let fields: Vec<&str> = text
            .rfind(')')
            .map_or("", |end| &text[end + 1..])
            .split_whitespace()
            .collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or_default();
        let number = |index: usize| {
            field(index).parse().map_err(|_| {
                io::Error::new(io::ErrorKind::InvalidData, "cannot read /proc/<pid>/stat")
            })
        };
        Ok(Self {
            state: field(0).chars().next().unwrap_or('X'),
            flags: number(6)?,
            start_ticks: number(19)?,
        })
    }

    fn is_ending(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.flags & Self::PF_EXITING != 0
    }
}

/// Runs `work` in a forked child and reports its error text, if any.
///
/// For work that changes the namespaces of the caller for good. The caller
/// must be single-threaded, as the monitor is until its sandbox runs.
pub(crate) fn in_child(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: the caller is single-threaded, so the child may run any code; it
    // leaves by `_exit` without unwinding into the parent's stack.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reader);
            let status = match work() {
                Ok(()) => 0,
                Err(error) => {
                    let _ = rustix::io::write(&writer, error.to_string().as_bytes());
                    1
                }
            };
            // SAFETY: ends only the child.
            unsafe { libc::_exit(status) }
        }
        child => {
            drop(writer);
            let mut message = String::new();
            fs::File::from(reader)
                .take(4096)
                .read_to_string(&mut message)?;
            let child = Pid::from_raw(child).ok_or_else(|| io::Error::other("fork gave pid 0"))?;
            let status = rustix::process::waitpid(Some(child), WaitOptions::empty())?;
            match status {
                Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
                _ if message.is_empty() => Err(io::Error::other("the helper process died")),
                _ => Err(io::Error::other(message)),
            }
        }
    }
}

/// A descriptor of `pid` that stays bound to that process.
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("pid 0"))?;
    Ok(rustix::process::pidfd_open(
        pid,
        rustix::process::PidfdFlags::empty(),
    )?)
}

/// Joins the namespaces `types` of the process behind `pidfd`.
pub(crate) fn enter(
    pidfd: impl AsFd,
    types: rustix::thread::ThreadNameSpaceType,
) -> io::Result<()> {
    Ok(rustix::thread::move_into_thread_name_spaces(
        pidfd.as_fd(),
        types,
    )?)
}

/// Moves the calling thread, and no other, into a new network namespace.
pub(crate) fn new_network_namespace() -> io::Result<()> {
    // SAFETY: NEWNET replaces the network namespace of this thread alone; no
    // file descriptor or memory is unshared, so nothing else is affected.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Runs `work` with this thread in the network namespace `namespace`.
///
/// Whatever `work` forks inherits it. A user namespace made by a runtime could
/// not join it later, because it belongs to the host.
pub(crate) fn within_network<T>(
    namespace: impl AsFd,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let own = fs::File::open("/proc/thread-self/ns/net")?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let result = work();
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::Network))?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_an_earlier_one_of_the_same_pid_does_not() {
        let me = ProcessIdentity::current().unwrap();
        assert!(me.is_alive());
        assert!(
            !ProcessIdentity {
                start_ticks: me.start_ticks - 1,
                ..me.clone()
            }
            .is_alive()
        );
        assert!(
            !ProcessIdentity {
                boot_id: "another boot".into(),
                ..me
            }
            .is_alive()
        );
    }

    #[test]
    fn errors_of_a_child_reach_the_parent() {
        assert!(in_child(|| Ok(())).is_ok());
        let error = in_child(|| Err(io::Error::other("no such luck"))).unwrap_err();
        assert_eq!(error.to_string(), "no such luck");
    }
}
