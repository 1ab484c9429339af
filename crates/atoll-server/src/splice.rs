//! Bytes from one socket to another inside the kernel: this process says where
//! they go, and never has them in its memory.
//!
//! A thread waits for the two sockets by itself: the detour over the tasks of
//! this process would take longer than the kernel does with the bytes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::net::TcpStream;

use crate::silence::Life;

/// Bytes that may be under way between the two, in pages that the sockets gave:
/// with fewer, both sides wait for each other more than they move.
const CHANNEL_BYTES: usize = 1024 * 1024;

/// How long a thread waits for a socket until it looks whether somebody still
/// waits for the thread.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Which side let bytes down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpliceError {
    /// The one that they come from.
    #[error("the source broke")]
    Source(#[source] io::Error),
    /// The one that they go to.
    #[error("the target broke")]
    Target(#[source] io::Error),
}

/// Moves bytes until `limit` of them have passed or the source has ended, and
/// says how many it were. Dropped before, it ends both connections: what was
/// between them is lost.
pub(crate) async fn pass(
    from: &TcpStream,
    to: &TcpStream,
    limit: u64,
    life: &Arc<Life>,
) -> Result<u64, SpliceError> {
    let channel = Channel::between(from, to, life).map_err(SpliceError::Source)?;
    let mut hold = Hold {
        from,
        to,
        is_dropped: Arc::clone(&channel.is_dropped),
        is_done: false,
    };
    let passed = tokio::task::spawn_blocking(move || channel.run(limit)).await;
    hold.is_done = true;
    passed.map_err(|error| SpliceError::Source(io::Error::other(error)))?
}

/// Somebody who waits for a thread.
struct Hold<'s> {
    from: &'s TcpStream,
    to: &'s TcpStream,
    is_dropped: Arc<AtomicBool>,
    is_done: bool,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.is_dropped.store(true, Ordering::Relaxed);
        for socket in [self.from, self.to] {
            // Wakes up the thread; one that is over cannot be ended again.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

/// A way between two sockets: a pipe, which the kernel fills from one of them
/// and empties into the other.
struct Channel {
    from: OwnedFd,
    to: OwnedFd,
    entry: OwnedFd,
    exit: OwnedFd,
    life: Arc<Life>,
    is_dropped: Arc<AtomicBool>,
}

impl Channel {
    fn between(from: &TcpStream, to: &TcpStream, life: &Arc<Life>) -> io::Result<Self> {
        let (exit, entry) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Where it stays smaller, less goes at once.
        let _ = fcntl_setpipe_size(&entry, CHANNEL_BYTES);
        Ok(Self {
            from: from.as_fd().try_clone_to_owned()?,
            to: to.as_fd().try_clone_to_owned()?,
            entry,
            exit,
            life: Arc::clone(life),
            is_dropped: Arc::default(),
        })
    }

    fn run(self, limit: u64) -> Result<u64, SpliceError> {
        let mut passed = 0;
        while passed < limit {
            let wanted = usize::try_from(limit - passed).unwrap_or(CHANNEL_BYTES);
            let filled = self.fill(wanted.min(CHANNEL_BYTES));
            let filled = filled.map_err(SpliceError::Source)?;
            if filled == 0 {
                break;
            }
            self.life.moved();
            self.empty(filled).map_err(SpliceError::Target)?;
            passed += filled as u64;
        }
        Ok(passed)
    }

    /// Takes what the source has, up to `wanted` bytes; nothing at its end. The
    /// pipe is empty before, so that only the socket can be what is waited for.
    fn fill(&self, wanted: usize) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        loop {
            match splice(&self.from, None, &self.entry, None, wanted, flags) {
                Err(Errno::AGAIN) => self.wait(&self.from, PollFlags::IN)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Gives all that is in the pipe.
    fn empty(&self, filled: usize) -> io::Result<()> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let mut left = filled;
        while left > 0 {
            match splice(&self.exit, None, &self.to, None, left, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    left -= moved;
                    self.life.moved();
                }
                Err(Errno::AGAIN) => self.wait(&self.to, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until a socket can do something, or is over.
    fn wait(&self, socket: &OwnedFd, wanted: PollFlags) -> io::Result<()> {
        loop {
            if self.is_dropped.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match poll(&mut [PollFd::new(socket, wanted)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    /// Bytes that tell where they were.
    fn content(length: u32) -> Vec<u8> {
        (0..length).flat_map(u32::to_le_bytes).collect()
    }

    #[tokio::test]
    async fn everything_passes_in_its_order_up_to_the_end() {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        let sent = content(1 << 20);
        let expected = sent.clone();
        let sending = tokio::spawn(async move {
            sender.write_all(&sent).await.unwrap();
        });
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            receiver.read_to_end(&mut read).await.unwrap();
            read
        });
        let passed = pass(&from, &to, u64::MAX, &Arc::new(Life::new())).await;
        assert_eq!(passed.unwrap(), expected.len() as u64);
        drop(to);
        sending.await.unwrap();
        assert!(reading.await.unwrap() == expected);
    }

    #[tokio::test]
    async fn nothing_passes_beyond_the_limit() {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        sender.write_all(b"ours and theirs").await.unwrap();
        let passed = pass(&from, &to, 4, &Arc::new(Life::new())).await.unwrap();
        drop(to);
        let mut read = String::new();
        receiver.read_to_string(&mut read).await.unwrap();
        assert_eq!((passed, read.as_str()), (4, "ours"));
    }

    #[tokio::test]
    async fn a_target_that_takes_nothing_holds_the_source_back() {
        let ((mut sender, from), (to, receiver)) = (pair().await, pair().await);
        let life = Arc::new(Life::new());
        let flood = async {
            let piece = vec![0; 1 << 20];
            loop {
                sender.write_all(&piece).await.unwrap();
            }
        };
        let halted = async {
            // Until nothing has moved for a while: all buffers are full.
            life.silence(std::time::Duration::from_millis(300)).await;
        };
        tokio::select! {
            passed = pass(&from, &to, u64::MAX, &life) => unreachable!("{passed:?}"),
            never = flood => never,
            () = halted => {}
        }
        // Who waited has gone, the thread too, and both sides hear of it.
        drop((from, to));
        let mut rest = Vec::new();
        let mut receiver = receiver;
        assert!(receiver.read_to_end(&mut rest).await.is_ok());
        let piece = vec![0; 1 << 20];
        while sender.write_all(&piece).await.is_ok() {}
    }

    #[tokio::test]
    async fn a_target_that_is_gone_is_told_apart_from_a_source() {
        let ((mut sender, from), (to, receiver)) = (pair().await, pair().await);
        drop(receiver);
        let flood = async {
            let piece = vec![0; 1 << 16];
            while sender.write_all(&piece).await.is_ok() {}
            std::future::pending::<()>().await;
        };
        let life = Arc::new(Life::new());
        let passed = tokio::select! {
            passed = pass(&from, &to, u64::MAX, &life) => passed,
            () = flood => unreachable!(),
        };
        assert!(matches!(passed, Err(SpliceError::Target(_))), "{passed:?}");
    }
}
