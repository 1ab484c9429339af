//! The first process of a pid namespace, to which everything in it is tied.
//!
//! gVisor's processes have no tie to who started them. In a pid namespace of
//! their own they have one: when its first process ends, the kernel ends all
//! others at once, whatever they are doing. That first process is a child of
//! the monitor and dies with it. So a killed monitor means a dead sandbox.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::{HostObject, creates, mount};

/// A first process that was started.
pub(crate) struct Keeper {
    pub(crate) pid: i32,
    /// What it says.
    pub(crate) said: PipeReader,
}

/// Runs `work` as the first process of a new pid namespace, with a mount
/// namespace in which `/proc` shows it. What `work` returns is its exit status,
/// and what it gets a pipe to this process; `whole_proc` is a place for a second
/// view of the processes (see [`mount::fresh_proc`]).
///
/// The caller must be single-threaded, as the monitor is until its sandbox runs.
pub(crate) fn start(
    whole_proc: &Path,
    work: impl FnOnce(PipeWriter) -> io::Result<i32>,
) -> io::Result<Keeper> {
    let own = File::open("/proc/self/ns/pid")?;
    let (said, report) = io::pipe()?;
    creates(HostObject::Keeper, || {
        // SAFETY: only children born from here on are in the new namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWPID)? };
        // SAFETY: the caller is single-threaded, so the child may run any code; it
        // leaves by `_exit` without unwinding into the parent's stack.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // The parent's end: with it open, nobody would notice that the parent is gone.
            drop(said);
            let status = prepare(&report, whole_proc)
                .and_then(|()| work(report))
                .unwrap_or(1);
            // SAFETY: ends only the child.
            unsafe { libc::_exit(status) }
        }
        let forked = if pid < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(Keeper { pid, said })
        };
        move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
        forked
    })
}

/// Ties the child to its parent and gives it a view of its own namespace.
fn prepare(report: &PipeWriter, whole_proc: &Path) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before that call.
    let mut asked = [PollFd::new(report, PollFlags::empty())];
    poll(&mut asked, Some(&Timespec::default()))?;
    if asked[0].revents().contains(PollFlags::ERR) {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe));
    }
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    mount::private_mount_namespace()?;
    mount::fresh_proc(whole_proc)
}
