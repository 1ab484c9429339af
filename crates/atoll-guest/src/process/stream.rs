//! Nonblocking reads and writes of pipes and terminals.

use std::io;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One end of a pipe, or the master side of a terminal.
#[derive(Debug)]
pub(crate) struct Stream(AsyncFd<OwnedFd>);

impl Stream {
    /// Takes over a descriptor that nobody else reads or writes.
    pub(crate) fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // SAFETY: an `OwnedFd` names the same open file until it is dropped,
        // and nothing here replaces or closes it before the registration ends.
        Ok(Self(unsafe {
            AsyncFd::register_with_interest(fd, interest)
        }?))
    }

    /// The descriptor, for questions about the terminal.
    pub(crate) fn fd(&self) -> &OwnedFd {
        self.0.get_ref()
    }

    /// Waits for bytes, at most `buffer.len()` of them; `None` at the end.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<Option<Bytes>> {
        let read = self
            .0
            .async_io(Interest::READABLE, |fd| {
                Ok(rustix::io::read(fd, &mut *buffer)?)
            })
            .await;
        match read {
            Ok(0) => Ok(None),
            Ok(length) => Ok(Some(Bytes::copy_from_slice(&buffer[..length]))),
            // A terminal whose last user is gone.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes everything, waiting for the reader where it is slow.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self
                .0
                .async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?))
                .await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }
}
