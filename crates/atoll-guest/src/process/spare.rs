//! The reaper of the next command, started before anybody asks for it: a
//! program's own start is the larger part of what a short command takes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::reaper::Order;
use crate::COMMAND_REAPER;

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

    /// Starts the next one. Where that fails, so would the next command, and
    /// says so.
    pub(crate) fn refill(&self) {
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
