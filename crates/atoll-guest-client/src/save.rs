//! A file of the sandbox into one of the host.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use atoll_siphon::{Siphon, SiphonError};
use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use crate::download::{FileReader, Whole};
use crate::error::GuestError;

/// Bytes that are copied at once where the kernel does not move them.
const BUFFER_BYTES: usize = 256 * 1024;

/// Why a file was not saved. Part of it may be there.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The sandbox did not send it.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// It could not be written here.
    #[error("cannot write the file")]
    File(#[source] io::Error),
}

impl FileReader {
    /// Writes all that comes to `file`, from where that is, and says how many
    /// bytes it was. A file that came past HTTP goes there on a thread of its
    /// own, and never through our memory; others are written where this is
    /// awaited, so it is for callers whose thread may wait for a disk.
    ///
    /// # Errors
    /// When the file does not come whole, or cannot be written.
    pub async fn save_to(self, file: File) -> Result<u64, SaveError> {
        match self.untouched_lane() {
            Ok(whole) => save_lane(whole, file).await,
            Err(reader) => save_body(*reader, file).await,
        }
    }
}

async fn save_body(mut reader: FileReader, mut file: File) -> Result<u64, SaveError> {
    let (mut buffer, mut saved) = (vec![0; BUFFER_BYTES], 0);
    loop {
        let read = reader.read(&mut buffer).await.map_err(|error| {
            // A reader of files packs its own errors into those of streams.
            error
                .downcast::<GuestError>()
                .unwrap_or_else(|other| GuestError::Disconnected(other.to_string()))
        })?;
        if read == 0 {
            return Ok(saved);
        }
        file.write_all(&buffer[..read]).map_err(SaveError::File)?;
        saved += read as u64;
    }
}

async fn save_lane(whole: Whole, file: File) -> Result<u64, SaveError> {
    let Whole {
        lane,
        length,
        silence,
    } = whole;
    let (stream, early) = lane.into_parts();
    let broken = |error: io::Error| GuestError::Disconnected(error.to_string());
    let stream = stream.into_std().map_err(broken)?;
    stream.set_nonblocking(false).map_err(broken)?;
    // Of no length at all it would be none.
    let bound = silence.max(Duration::from_millis(1));
    stream.set_read_timeout(Some(bound)).map_err(broken)?;
    let stream = Arc::new(stream);
    let _hung_up = HungUp(Arc::clone(&stream));
    let working = move || draw_all(&stream, &early, &file, length, silence);
    tokio::task::spawn_blocking(working)
        .await
        .map_err(|error| SaveError::File(io::Error::other(error)))?
}

fn draw_all(
    from: &TcpStream,
    early: &Bytes,
    mut file: &File,
    length: u64,
    silence: Duration,
) -> Result<u64, SaveError> {
    let early = &early[..usize::try_from(length).map_or(early.len(), |most| most.min(early.len()))];
    file.write_all(early).map_err(SaveError::File)?;
    let mut left = length - early.len() as u64;
    let mut siphon = Siphon::new();
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX);
        match siphon.draw(from, file, wanted) {
            Ok(0) => {
                return Err(GuestError::Protocol(
                    "less of the file came than was announced".to_owned(),
                )
                .into());
            }
            Ok(moved) => left -= moved as u64,
            Err(SiphonError::File(error)) => return Err(SaveError::File(error)),
            Err(SiphonError::Connection(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(GuestError::Timeout {
                    what: "send more of the file",
                    bound: silence,
                }
                .into());
            }
            Err(SiphonError::Connection(error)) => {
                return Err(GuestError::Disconnected(error.to_string()).into());
            }
        }
    }
    Ok(length)
}

/// Ends a connection when nobody waits for it any more, and with it the thread
/// that reads from it.
struct HungUp(Arc<TcpStream>);

impl Drop for HungUp {
    fn drop(&mut self) {
        // One that is over cannot be ended again.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
