//! The process between the guest and one command: a tiny subreaper that waits
//! for its order and the command's streams, starts the command as its user, tells the guest its pid, reaps whatever
//! ends below it, and passes on how the command ended.
//!
//! It is the guest's own executable with other arguments and never has more
//! than one thread, so ordinary code is fine between `fork` and `exec`.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::priority;

/// What commands add to their chance of being ended for memory, so that the
/// kernel takes them before it takes PID 1.
const OOM_SCORE_ADJ: &str = "500";

/// What the guest asks for, as JSON until the end of its half of the socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Program.
    pub(crate) cmd: String,
    /// Arguments after the program's name.
    pub(crate) args: Vec<String>,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    /// Directory to start in.
    pub(crate) cwd: String,
    /// User id.
    pub(crate) uid: u32,
    /// Primary group.
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// Whether descriptor 0 is a terminal to be controlled by.
    pub(crate) terminal: bool,
}

/// What the reaper tells the guest, one line each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The order is carried out from here on. A reaper that ends before has started nothing.
    Taken,
    /// The command runs.
    Started {
        /// Its pid.
        pid: i32,
    },
    /// The command could not be started.
    Failed {
        /// What could not be done.
        step: Step,
        /// Why.
        errno: i32,
    },
    /// The command ended by itself.
    Exited {
        /// Its exit status.
        code: i32,
    },
    /// The command was ended.
    Signaled {
        /// By this signal.
        signal: i32,
    },
}

/// Steps on the way to a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Becoming the one to whom orphans come.
    Supervise,
    /// Session and terminal.
    Terminal,
    /// Becoming the user.
    User,
    /// Entering the directory.
    Directory,
    /// Running the program.
    Execute,
}

/// Entry point of the reaper, whose standard input is its socket.
pub(crate) fn run() -> ExitCode {
    match rustix::stdio::stdin()
        .try_clone_to_owned()
        .and_then(|control| supervise(&mut File::from(control)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn supervise(control: &mut File) -> io::Result<()> {
    // The guest may end before it has anything for us to do.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let [stdin, stdout, stderr] = receive_streams(control)?;
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    let mut order = Vec::new();
    control.read_to_end(&mut order)?;
    let order: Order = serde_json::from_slice(&order)?;
    if let Err(error) = prepare() {
        return report(control, &failed(Step::Supervise, &error));
    }
    report(control, &Report::Taken)?;
    let pid = match start(order, control) {
        Ok(pid) => pid,
        // A failed step told the guest already; this line is for the rest.
        Err(error) => return report(control, &failed(Step::Execute, &error)),
    };
    report(control, &Report::Started { pid })?;
    release_standard_streams()?;

    loop {
        let Some((ended, status)) = rustix::process::wait(WaitOptions::empty())? else {
            continue;
        };
        if ended.as_raw_nonzero().get() != pid {
            continue;
        }
        if let Some(code) = status.exit_status() {
            return report(control, &Report::Exited { code });
        }
        if let Some(signal) = status.terminating_signal() {
            return report(control, &Report::Signaled { signal });
        }
    }
}

/// Waits for the command's streams. An end without them means that the guest is gone.
fn receive_streams(control: &File) -> io::Result<[OwnedFd; 3]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut carrier = [0];
    rustix::net::recvmsg(
        control,
        &mut [IoSliceMut::new(&mut carrier)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// Without these a timeout could miss something or a command could inherit
/// something, so no command runs without them.
fn prepare() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    close_inherited_on_exec()
}

fn start(order: Order, control: &File) -> io::Result<i32> {
    let mut command = Command::new(&order.cmd);
    command
        .args(&order.args)
        .env_clear()
        .envs(order.env.iter().map(|(name, value)| (name, value)));
    let mut control = control.try_clone()?;
    let enter = move || -> io::Result<()> {
        for (step, action) in [
            (
                Step::Terminal,
                enter_session as fn(&Order) -> io::Result<()>,
            ),
            (Step::User, become_user),
            (Step::Directory, enter_directory),
        ] {
            action(&order).inspect_err(|error| {
                let _ = report(&mut control, &failed(step, error));
            })?;
        }
        Ok(())
    };
    // SAFETY: this process has one thread, so the child of its fork may
    // allocate, lock and open files as it likes.
    unsafe { command.pre_exec(enter) };
    let child = command.spawn()?;
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// A session of its own, so that a signal to the group reaches the command
/// and nothing of ours, with the terminal in control if there is one.
fn enter_session(order: &Order) -> io::Result<()> {
    rustix::process::setsid()?;
    if order.terminal {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    // The kernel's `struct sigaction`, all zero: the default for the signal.
    let default = [0_u64; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel reads the 32 bytes of `default` and writes
        // nothing. The C library would refuse the two signals that it keeps
        // for itself, which whoever started us may have left ignored.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null::<u64>(),
                8_usize,
            )
        };
    }
    // SAFETY: an all-zero set is valid storage, `sigemptyset` makes it an
    // empty set, and `sigprocmask` only reads it.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    // Where the kernel offers no such file the command is merely as likely
    // to be ended for memory as we are.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    priority::give_up()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

fn become_user(order: &Order) -> io::Result<()> {
    let already = rustix::process::geteuid().as_raw() == order.uid
        && rustix::process::getegid().as_raw() == order.gid;
    // SAFETY: pointer and length describe one live slice.
    let grouped = check(unsafe { libc::setgroups(order.groups.len(), order.groups.as_ptr()) });
    // Who stays who we are may do so where groups cannot be changed.
    grouped.or_else(|error| if already { Ok(()) } else { Err(error) })?;
    // SAFETY: takes a number only.
    check(unsafe { libc::setgid(order.gid) })?;
    // SAFETY: takes a number only.
    check(unsafe { libc::setuid(order.uid) })
}

fn enter_directory(order: &Order) -> io::Result<()> {
    std::env::set_current_dir(&order.cwd)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whatever the guest had open, the command shall not have.
fn close_inherited_on_exec() -> io::Result<()> {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // SAFETY: sets a flag on a number; one that is closed meanwhile,
        // such as that of the listing, is refused without harm.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Lets go of the command's streams, so that their other ends see it end.
fn release_standard_streams() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    rustix::stdio::dup2_stderr(null.as_fd())?;
    Ok(())
}

fn failed(step: Step, error: &io::Error) -> Report {
    // Errors without a number come from the library: a NUL in an argument.
    Report::Failed {
        step,
        errno: error.raw_os_error().unwrap_or(libc::EINVAL),
    }
}

fn report(control: &mut File, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    control.write_all(&line)
}
