//! The reaper of the next command, started before anybody asks for it: a
//! program's own start is the larger part of what a short command takes.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::reaper::Order;
use crate::COMMAND_REAPER;

/// How long the starter leaves the processor to the command before.
const STARTER_PAUSE: Duration = Duration::from_millis(150);
const STARTER_STACK_BYTES: usize = 128 * 1024;

/// A reaper that waits for its order.
#[derive(Debug)]
struct Waiting {
    pid: i32,
    control: StdUnixStream,
}

/// At most one reaper that waits.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    waiting: Mutex<Option<Waiting>>,
    /// Who starts reapers, where it is not whoever asks for one.
    starter: Option<Sender<()>>,
}

impl Spare {
    /// With a thread that starts reapers, the first one now: gVisor takes long to
    /// start a program, and meanwhile the guest can do what else is asked for.
    /// The thread stays, because a reaper's life is bound to who forks it.
    pub(crate) fn with_starter() -> io::Result<Arc<Self>> {
        let (starter, asked) = channel();
        let spare = Arc::new(Self {
            waiting: Mutex::default(),
            starter: Some(starter.clone()),
        });
        let filled = Arc::clone(&spare);
        std::thread::Builder::new()
            .name("reapers".to_owned())
            .stack_size(STARTER_STACK_BYTES)
            .spawn(move || asked.iter().for_each(|()| filled.refill()))?;
        // It never ends, so it hears.
        let _ = starter.send(());
        Ok(spare)
    }

    /// Hands a command and its streams to a reaper and returns the reaper's
    /// pid and the socket on which it reports.
    pub(crate) async fn order(
        &self,
        order: &Order,
        streams: &[OwnedFd; 3],
    ) -> io::Result<(i32, UnixStream)> {
        let bytes = serde_json::to_vec(order)?;
        // Waits for one that is being started.
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

    /// Starts the next one. The starter waits a moment: under gVisor the next
    /// reaper would take the processor from the command that was just started.
    pub(crate) fn replace(&self) {
        let Some(starter) = self.starter.clone() else {
            return self.refill();
        };
        tokio::spawn(async move {
            tokio::time::sleep(STARTER_PAUSE).await;
            let _ = starter.send(());
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
        work(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
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
