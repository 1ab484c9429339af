//! The reaper of the next command, started before anybody asks for it: a
//! program's own start is the larger part of what a short command takes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::reaper::{self, Order};
use crate::COMMAND_REAPER;
use crate::boot::is_on_gvisor;

/// Under gVisor a start takes so much of the processor that the next reaper
/// would only slow down the command that was just started.
const GVISOR_PAUSE: Duration = Duration::from_millis(150);

/// A reaper that waits for its order.
#[derive(Debug)]
struct Waiting {
    pid: i32,
    control: StdUnixStream,
}

/// At most one reaper that waits.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Option<Waiting>>);

impl Spare {
    /// With a first reaper that is a fork of this process: gVisor takes long to
    /// start a program, and everybody waits for the guest now. Where that fails,
    /// the first command tries again, and says so.
    ///
    /// # Safety
    /// This process must have one thread, so that its fork may run any code.
    pub(crate) unsafe fn forked() -> Self {
        // SAFETY: the caller promises it.
        Self(Mutex::new(unsafe { Waiting::fork() }.ok()))
    }

    /// Hands a command and its streams to a reaper and returns the reaper's
    /// pid and the socket on which it reports.
    pub(crate) async fn order(
        &self,
        order: &Order,
        streams: &[OwnedFd; 3],
    ) -> io::Result<(i32, UnixStream)> {
        let bytes = serde_json::to_vec(order)?;
        let waiting = self.with(Option::take);
        // Somebody inside may have killed the one that waited; one that never
        // got its streams has started nothing.
        let Waiting { pid, control } = match waiting {
            Some(waiting) if hand_over(&waiting.control, streams).is_ok() => waiting,
            Some(_) | None => {
                let fresh = Waiting::spawn()?;
                hand_over(&fresh.control, streams)?;
                fresh
            }
        };
        control.set_nonblocking(true)?;
        let mut control = UnixStream::from_std(control)?;
        control.write_all(&bytes).await?;
        control.shutdown().await?;
        Ok((pid, control))
    }

    /// Starts the next one where that disturbs the command that was just
    /// started least.
    pub(crate) fn replace(self: &Arc<Self>) {
        if !is_on_gvisor() {
            return self.refill();
        }
        let spare = Arc::clone(self);
        // On this same thread, which forks all reapers.
        tokio::spawn(async move {
            tokio::time::sleep(GVISOR_PAUSE).await;
            spare.refill();
        });
    }

    /// Where this fails, so would the next command, and says so.
    fn refill(&self) {
        self.with(|waiting| {
            if waiting.is_none() {
                *waiting = Waiting::spawn().ok();
            }
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut Option<Waiting>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Waiting {
    /// # Safety
    /// This process must have one thread.
    unsafe fn fork() -> io::Result<Self> {
        let (control, theirs) = StdUnixStream::pair()?;
        // SAFETY: the only thread forks, so the child may run any code; it
        // leaves by `_exit` without unwinding into the parent's stack.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let status = i32::from(become_reaper(&theirs).is_err());
                // SAFETY: ends only the child; nothing of it is dropped.
                unsafe { libc::_exit(status) }
            }
            pid => Ok(Self { pid, control }),
        }
    }

    fn spawn() -> io::Result<Self> {
        let (control, theirs) = StdUnixStream::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg0("atoll-guest")
            .arg(COMMAND_REAPER)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            pid: i32::try_from(child.id()).map_err(io::Error::other)?,
            control,
        })
    }
}

/// Makes a fork of the guest what a program started as a reaper is: the socket
/// is its standard input, and it has nothing else of the guest.
fn become_reaper(control: &StdUnixStream) -> io::Result<()> {
    rustix::stdio::dup2_stdin(control)?;
    // SAFETY: whoever calls ends without using or dropping any of these.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    reaper::obey()
}

/// Sends the descriptors with one byte that carries them.
pub(crate) fn hand_over(control: &StdUnixStream, streams: &[OwnedFd; 3]) -> io::Result<()> {
    let [stdin, stdout, stderr] = streams;
    let descriptors = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if !message.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("three descriptors do not fit"));
    }
    let sent = rustix::net::sendmsg(
        control,
        &[io::IoSlice::new(&[0])],
        &mut message,
        SendFlags::NOSIGNAL,
    )?;
    if sent == 1 {
        Ok(())
    } else {
        Err(io::Error::other("the byte was not taken"))
    }
}
