//! Bytes from one socket to another inside the kernel: this process says where
//! they go, and never has them in its memory.

use std::io;
use std::os::fd::OwnedFd;

use atoll_siphon::nearby;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::silence::Life;

/// Bytes that may be under way between the two, in pages that the sockets gave:
/// with fewer, both sides wait for each other more than they move.
const CHANNEL_BYTES: usize = 1024 * 1024;

/// Bytes that are waited for where it is known that they come: to be woken up for
/// less costs more than moving them does.
const NEWS_BYTES: usize = 256 * 1024;

/// Bytes after which others have their turn.
const TURN_BYTES: u64 = 1024 * 1024;

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

/// A way between two sockets: a pipe, which the kernel fills from one of them
/// and empties into the other.
#[derive(Debug)]
pub(crate) struct Channel {
    entry: OwnedFd,
    exit: OwnedFd,
}

impl Channel {
    pub(crate) fn new() -> io::Result<Self> {
        let (exit, entry) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Where it stays smaller, less goes at once.
        let _ = fcntl_setpipe_size(&entry, CHANNEL_BYTES);
        Ok(Self { entry, exit })
    }

    /// The limit of what has none.
    pub(crate) const UNTIL_ITS_END: u64 = u64::MAX;

    /// Moves bytes until `limit` of them have passed or the source has ended,
    /// and says how many it were. A source with a limit is one that is to give so
    /// many. To be used once: what is in the pipe when this is dropped is lost.
    pub(crate) async fn pass(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        limit: u64,
        life: &Life,
    ) -> Result<u64, SpliceError> {
        let (mut passed, mut yielded, mut awaited) = (0, 0, 1);
        while passed < limit {
            if passed - yielded >= TURN_BYTES {
                // Two sockets that are always ready would keep everybody else waiting.
                yielded = passed;
                tokio::task::yield_now().await;
            }
            let wanted = usize::try_from(limit - passed).unwrap_or(CHANNEL_BYTES);
            let news = match limit {
                Self::UNTIL_ITS_END => 1,
                _ => wanted.min(NEWS_BYTES),
            };
            if news != awaited {
                nearby::with_rare_news(from, news);
                awaited = news;
            }
            let filled = self.fill(from, wanted.min(CHANNEL_BYTES)).await;
            let filled = filled.map_err(SpliceError::Source)?;
            if filled == 0 {
                break;
            }
            life.moved();
            self.empty(to, filled, life)
                .await
                .map_err(SpliceError::Target)?;
            passed += filled as u64;
        }
        Ok(passed)
    }

    /// Takes what `from` has, up to `wanted` bytes; nothing at its end. The
    /// pipe is empty before, so that only the socket can be what is waited for.
    async fn fill(&self, from: &TcpStream, wanted: usize) -> io::Result<usize> {
        loop {
            from.readable().await?;
            let moved = from.try_io(Interest::READABLE, || {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                Ok(splice(from, None, &self.entry, None, wanted, flags)?)
            });
            match moved {
                Err(error) if is_to_be_repeated(&error) => {}
                other => return other,
            }
        }
    }

    /// Gives all that is in the pipe.
    async fn empty(&self, to: &TcpStream, filled: usize, life: &Life) -> io::Result<()> {
        let mut left = filled;
        while left > 0 {
            to.writable().await?;
            let moved = to.try_io(Interest::WRITABLE, || {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                Ok(splice(&self.exit, None, to, None, left, flags)?)
            });
            match moved {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    left -= moved;
                    life.moved();
                }
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_to_be_repeated(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
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
        let channel = Channel::new().unwrap();
        let passed = channel
            .pass(&from, &to, Channel::UNTIL_ITS_END, &Life::new())
            .await;
        assert_eq!(passed.unwrap(), expected.len() as u64);
        drop(to);
        sending.await.unwrap();
        assert!(reading.await.unwrap() == expected);
    }

    #[tokio::test]
    async fn nothing_passes_beyond_the_limit() {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        sender.write_all(b"ours and theirs").await.unwrap();
        let channel = Channel::new().unwrap();
        let passed = channel.pass(&from, &to, 4, &Life::new()).await.unwrap();
        drop(to);
        let mut read = String::new();
        receiver.read_to_string(&mut read).await.unwrap();
        assert_eq!((passed, read.as_str()), (4, "ours"));
    }

    #[tokio::test]
    async fn of_what_is_awaited_the_last_bytes_and_a_broken_off_rest_are_noticed_too() {
        for (sent, awaited) in [(NEWS_BYTES + 5, NEWS_BYTES + 5), (7, NEWS_BYTES)] {
            let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
            let sending = tokio::spawn(async move {
                for piece in vec![1; sent].chunks(64 * 1024) {
                    sender.write_all(piece).await.unwrap();
                }
                // Who sends all that was said stays, and who does not leaves.
                (sent == awaited).then_some(sender)
            });
            let channel = Channel::new().unwrap();
            let life = Life::new();
            let passing = channel.pass(&from, &to, awaited as u64, &life);
            let mut read = vec![0; sent];
            let (passed, arrived) = tokio::join!(passing, receiver.read_exact(&mut read));
            assert_eq!((passed.unwrap(), arrived.unwrap()), (sent as u64, sent));
            drop(sending.await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_target_that_takes_nothing_holds_the_source_back() {
        let ((mut sender, from), (to, receiver)) = (pair().await, pair().await);
        let (channel, life) = (Channel::new().unwrap(), Life::new());
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
            passed = channel.pass(&from, &to, Channel::UNTIL_ITS_END, &life) => unreachable!("{passed:?}"),
            never = flood => never,
            () = halted => {}
        }
        drop(receiver);
        let passed = channel
            .pass(&from, &to, Channel::UNTIL_ITS_END, &life)
            .await;
        assert!(matches!(passed, Err(SpliceError::Target(_))), "{passed:?}");
    }
}
