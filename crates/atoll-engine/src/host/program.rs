//! Programs that Atoll starts on the host.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space};

use super::{HostObject, creates, process};

/// Runs `program` to its end. A missing one is named with the package that has it.
pub(crate) fn run(program: &str, package: &str, arguments: &[String]) -> io::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                io::ErrorKind::NotFound,
                format!("`{program}` is not installed (Debian package `{package}`)"),
            ),
            _ => error,
        })?;
    if output.status.success() {
        return Ok(());
    }
    let detail = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "`{program}` failed ({}): {}",
        output.status,
        detail.trim()
    )))
}

/// Starts a process that goes on by itself.
pub(crate) fn spawn(object: HostObject, command: &mut Command) -> io::Result<Child> {
    creates(object, || command.spawn())
}

/// Runs `command` among the processes of the pid namespace whose first one is `keeper`, and
/// with the mounts of that. One that takes longer than `bound` is ended.
///
/// The caller must be single-threaded.
pub(crate) fn status_beside(
    keeper: BorrowedFd<'_>,
    command: &mut Command,
    bound: Duration,
) -> io::Result<ExitStatus> {
    use std::os::unix::process::CommandExt as _;
    let own = File::open("/proc/self/ns/pid")?;
    let mounts = keeper.try_clone_to_owned()?;
    let enter = move || process::enter(&mounts, ThreadNameSpaceType::MOUNT);
    // SAFETY: makes one system call, and the caller is single-threaded.
    unsafe { command.pre_exec(enter) };
    // Only children are in it from here on.
    process::enter(keeper, ThreadNameSpaceType::PROCESS_ID)?;
    let spawned = command.spawn();
    move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    wait_within(spawned?, bound)
}

fn wait_within(mut child: Child, bound: Duration) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let ended = process::pidfd(pid)?;
    let bound_spec = Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(bound.subsec_nanos()),
    };
    let polled = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&bound_spec));
    if !matches!(polled, Ok(1)) {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it took longer than {} s", bound.as_secs()),
        ));
    }
    child.wait()
}

/// Runs `command` to its end; what it makes is named by the caller.
pub(crate) fn status(command: &mut Command) -> io::Result<ExitStatus> {
    command.status()
}
