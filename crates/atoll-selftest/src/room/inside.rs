//! The room's processes, none of which outlives it.
//!
//! ```text
//! selftest ── pipe ──▶ warden ──▶ first process ──▶ python3 ──▶ …
//! ```
//! The warden ends everything when the program ends, or when the pipe does,
//! because the selftest is over, was interrupted or was killed. The first
//! process is PID 1 of a pid namespace, which the kernel ends as a whole. Where
//! a control needs the host's pids, there is none; then the warden is the
//! parent of whoever loses theirs, and ends children until there is none left.

use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, setsid, wait, waitpid,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::furnish::{furnish, open_directory};
use super::{LEAKED, Order, Pids};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Reads an order from standard input, carries it out, and ends with its program
/// or with the end of standard input, whichever comes first.
pub(crate) fn enter() -> io::Result<ExitCode> {
    // Ctrl-C is for the selftest; the warden notices its end.
    setsid()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line).map_err(io::Error::other)?;
    let leaked = open_directory(order.canaries.parent().unwrap_or(&order.canaries))?;
    furnish(&order)?;
    match order.pids {
        // SAFETY: this process has one thread, and only its children see the difference.
        Pids::Own => unsafe { unshare_unsafe(UnshareFlags::NEWPID)? },
        Pids::Host => set_child_subreaper(Some(getpid()))?,
    }
    // SAFETY: this process has one thread, so the child may do whatever it could.
    match unsafe { libc::fork() } {
        0 => be_first(&order, leaked),
        pid => match Pid::from_raw(pid) {
            Some(first) if pid > 0 => watch(first, order.pids),
            _ => Err(io::Error::last_os_error()),
        },
    }
}

/// Runs the program. Whatever it leaves behind ends with this process.
fn be_first(order: &Order, leaked: OwnedFd) -> io::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let status = start(order, leaked)?.wait()?;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(exit_code(code))
}

fn exit_code(code: Option<i32>) -> ExitCode {
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn start(order: &Order, leaked: OwnedFd) -> io::Result<Child> {
    let mut program = fs::File::from(memfd_create("program", MemfdFlags::CLOEXEC)?);
    program.write_all(order.program.as_bytes())?;
    program.rewind()?;
    let (leak, directory) = (order.leak, CString::new(order.directory.as_str())?);
    let mut command = Command::new("python3");
    command
        .args(["-I", "-"])
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::from(program));
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if leak {
            // SAFETY: duplicates a descriptor that lives; the number is free in the child.
            if unsafe { libc::dup2(leaked.as_raw_fd(), LEAKED) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(rustix::process::chdir(directory.as_c_str())?)
    };
    // SAFETY: only system calls, on memory that was allocated before the fork.
    unsafe { command.pre_exec(prepare) };
    command
        .spawn()
        .map_err(|error| io::Error::other(format!("the room cannot run `python3`: {error}")))
}

/// The warden: waits for the first process, or ends it when nobody waits for
/// the program any more, and leaves no process behind.
fn watch(first: Pid, pids: Pids) -> io::Result<ExitCode> {
    let process = pidfd_open(first, PidfdFlags::empty())?;
    let stdin = io::stdin();
    let mut sources = [
        PollFd::new(&process, PollFlags::IN),
        PollFd::new(&stdin, PollFlags::IN),
    ];
    poll(&mut sources, None)?;
    if sources[0].revents().is_empty() {
        kill_process(first, Signal::KILL)?;
    }
    let ended = waitpid(Some(first), WaitOptions::empty())?;
    match pids {
        // The kernel has ended all of it before it told us.
        Pids::Own => {}
        Pids::Host => end_children()?,
    }
    Ok(exit_code(
        ended.and_then(|(_, status)| status.exit_status()),
    ))
}

/// Ends children, and theirs, which become ours, until there is none.
fn end_children() -> io::Result<()> {
    let own = getpid();
    loop {
        for entry in fs::read_dir("/proc")?.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            if parent_of(pid) == Some(own) {
                // One that has ended already is waited for below.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // Nobody is missed: who was not seen above is a child of one who was.
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The second field after the name, which may hold anything.
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Pid::from_raw(fields.split_whitespace().nth(1)?.parse().ok()?)
}
