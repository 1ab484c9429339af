//! One pass over a tar stream: hashed, compressed into a blob and unpacked at once.
//!
//! ```text
//! tree or tar ─▶ Splitter ─┬▶ SHA-256 (the name of the layer)
//!  (thread 1)              ├▶ zstd ─▶ channel ─▶ Blobs::put   (task)
//!                          └▶ channel ─▶ unpack               (thread 2)
//! ```
//! The directory is always made from the very bytes that were hashed.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc as blocking;

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;

use crate::digest::{Digest, Hasher};

/// Chunks waiting in each channel, which bounds memory.
pub(super) const CHUNKS: usize = 16;
/// Bytes gathered before a chunk is handed on.
const CHUNK_BYTES: usize = 256 * 1024;
/// Fast enough to keep up with a disk; the blob is a second copy, not the first.
const ZSTD_LEVEL: i32 = 1;
/// Zeros that end every archive.
const END_BYTES: u64 = 1024;

/// Called with the number of bytes handled so far, from any thread.
pub type Progress = Arc<dyn Fn(u64) + Send + Sync>;

/// Progress that nobody wants.
#[must_use]
pub fn no_progress() -> Progress {
    Arc::new(|_| {})
}

type Encoder = zstd::stream::write::Encoder<'static, ToBlob>;

/// Takes tar bytes in and gives them to the hash, the blob and the unpacker.
pub(super) struct Splitter {
    hasher: Hasher,
    encoder: Encoder,
    unpacker: blocking::SyncSender<Bytes>,
    pending: Vec<u8>,
    bytes: u64,
    trailing_zeros: u64,
    progress: Progress,
}

impl Splitter {
    pub(super) fn new(
        blob: mpsc::Sender<io::Result<Bytes>>,
        unpacker: blocking::SyncSender<Bytes>,
        progress: Progress,
    ) -> io::Result<Self> {
        let mut encoder = Encoder::new(
            ToBlob {
                sender: blob,
                pending: Vec::new(),
            },
            ZSTD_LEVEL,
        )?;
        encoder.include_checksum(true)?;
        Ok(Self {
            hasher: Hasher::new(),
            encoder,
            unpacker,
            pending: Vec::with_capacity(CHUNK_BYTES),
            bytes: 0,
            trailing_zeros: 0,
            progress,
        })
    }

    /// Ends the streams; the digest and size of what went through. An
    /// archive without its end marker was cut off and is refused.
    pub(super) fn finish(mut self) -> io::Result<(Digest, u64)> {
        self.hand_on()?;
        if self.trailing_zeros < END_BYTES {
            self.fail();
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the archive is cut off",
            ));
        }
        let mut blob = self.encoder.finish()?;
        blob.hand_on()?;
        Ok((self.hasher.finish(), self.bytes))
    }

    /// Tells the blob writer that the bytes so far are worth nothing.
    pub(super) fn fail(&mut self) {
        let error = io::Error::other("the source of the layer failed");
        // A receiver that is gone needs no telling.
        let _ = self.encoder.get_ref().sender.blocking_send(Err(error));
    }

    fn hand_on(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::from(std::mem::replace(
            &mut self.pending,
            Vec::with_capacity(CHUNK_BYTES),
        ));
        self.hasher.update(&chunk);
        self.encoder.write_all(&chunk)?;
        self.bytes += chunk.len() as u64;
        let zeros = chunk.iter().rev().take_while(|byte| **byte == 0).count();
        self.trailing_zeros = if zeros == chunk.len() {
            self.trailing_zeros
        } else {
            0
        } + zeros as u64;
        self.unpacker
            .send(chunk)
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        (self.progress)(self.bytes);
        Ok(())
    }
}

impl Write for Splitter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= CHUNK_BYTES {
            self.hand_on()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compressed bytes on their way to the blob.
pub(super) struct ToBlob {
    sender: mpsc::Sender<io::Result<Bytes>>,
    pending: Vec<u8>,
}

impl ToBlob {
    fn hand_on(&mut self) -> io::Result<()> {
        let chunk = Bytes::from(std::mem::take(&mut self.pending));
        self.sender
            .blocking_send(Ok(chunk))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for ToBlob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= CHUNK_BYTES {
            self.hand_on()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Chunks from another thread as one stream.
pub(super) struct FromChunks<Next> {
    next: Next,
    chunk: Bytes,
}

impl<Next: FnMut() -> io::Result<Option<Bytes>>> FromChunks<Next> {
    pub(super) fn new(next: Next) -> Self {
        Self {
            next,
            chunk: Bytes::new(),
        }
    }
}

impl<Next: FnMut() -> io::Result<Option<Bytes>>> Read for FromChunks<Next> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match (self.next)()? {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// Hashes what is read through it.
pub(super) struct Hashing<Inner> {
    pub(super) inner: Inner,
    pub(super) hasher: Hasher,
    pub(super) bytes: u64,
    pub(super) progress: Progress,
}

impl<Inner: Read> Read for Hashing<Inner> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..length]);
        self.bytes += length as u64;
        (self.progress)(self.bytes);
        Ok(length)
    }
}
