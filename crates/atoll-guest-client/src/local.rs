//! A file of the host as a source of bytes.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// A regular file on a disk of this host, to be written into a sandbox.
///
/// It is read where it is asked, without the detour over another thread that
/// `tokio::fs` makes for each piece: that halves the speed. So it is for
/// callers whose thread may wait for a disk.
#[derive(Debug)]
pub struct LocalFile(pub File);

impl AsyncRead for LocalFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.0.read(out.initialize_unfilled()) {
                Ok(read) => {
                    out.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}
