//! A file on its way out.
//!
//! One thread opens the file, tells what it is, waits for what is wanted of
//! it, and reads ahead of the client by a few chunks. It ends as soon as
//! nobody wants more.

use std::fs::{File, Metadata as Stat};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::mpsc as buffers;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::{mpsc, oneshot};

use super::encoding::ByteStream;
use super::lane::Connected;
use super::{FileError, GATHERED_BYTES, open};
use crate::rights::{ended_silently, start_as};
use crate::users::User;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// Chunks that wait for the client, besides the one that is read and the
/// one that is sent.
const CHUNKS_AHEAD: usize = 2;

/// A file of which the beginning was read.
///
/// Only that tells how long it is: files of procfs claim to be empty and
/// those of sysfs to have a page. What is short is therefore read whole
/// before its length is told.
pub(super) struct Content {
    /// What the file said of itself when it was opened.
    pub(super) stat: Stat,
    /// `None` when only its end will tell.
    pub(super) length: Option<u64>,
    head: Bytes,
    rest: Rest,
}

/// What comes after the beginning.
struct Rest {
    order: oneshot::Sender<Order>,
    chunks: mpsc::Receiver<io::Result<Bytes>>,
}

/// What is wanted besides the beginning.
enum Order {
    /// As a body.
    Part { start: u64, length: u64 },
    /// All that follows the beginning, up to `length` bytes, past HTTP.
    Past {
        length: u64,
        head: Bytes,
        connected: oneshot::Receiver<Connected>,
    },
}

/// Opens a file in the name of `user`.
pub(super) async fn open(user: &User, path: &str) -> Result<Content, FileError> {
    let (answer, beginning) = oneshot::channel();
    let (order, ordered) = oneshot::channel();
    let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
    let target = path.to_owned();
    start_as(user, move |assumed| {
        let begun = assumed
            .map_err(|source| FileError::thread(&target, source))
            .and_then(|()| begin(&target));
        let (file, found) = match begun {
            Ok((file, stat, head)) => (Some(file), Ok((stat, head))),
            Err(error) => (None, Err(error)),
        };
        if let (Ok(()), Some(file)) = (answer.send(found), file)
            && let Ok(order) = ordered.blocking_recv()
        {
            match order {
                Order::Part { start, length } => send(file, start, length, &sender),
                Order::Past {
                    length,
                    head,
                    connected,
                } => {
                    if let Ok(connected) = connected.blocking_recv() {
                        // Whoever reads counts, and sees that some are missing.
                        let _ = connected.copy(&head, file, length);
                    }
                }
            }
        }
    })
    .map_err(|source| FileError::thread(path, source))?;
    let (stat, head) = beginning
        .await
        .map_err(|_| FileError::io("read", path, ended_silently()))??;
    let length = if head.len() < GATHERED_BYTES {
        Some(head.len() as u64)
    } else {
        Some(stat.len()).filter(|length| *length >= GATHERED_BYTES as u64)
    };
    Ok(Content {
        stat,
        length,
        head,
        rest: Rest { order, chunks },
    })
}

impl Content {
    /// How long it is, when it is too long to be gathered and says so.
    pub(super) fn length_if_large(&self) -> Option<u64> {
        self.length.filter(|length| *length > GATHERED_BYTES as u64)
    }

    /// Its first `length` bytes, to whoever is connected then.
    pub(super) fn past_http(self, length: u64, connected: oneshot::Receiver<Connected>) {
        // A thread that ended leaves a connection that breaks off.
        let _ = self.rest.order.send(Order::Past {
            length: length.saturating_sub(self.head.len() as u64),
            head: self.head,
            connected,
        });
    }

    /// Its bytes from `start` on, `length` of them or as many as there are.
    pub(super) fn part(self, start: u64, length: u64) -> ByteStream {
        let Rest { order, mut chunks } = self.rest;
        let head_length = self.head.len() as u64;
        let bound = |position: u64| usize::try_from(position.min(head_length)).unwrap_or(0);
        let end = start.saturating_add(length);
        let head = self.head.slice(bound(start)..bound(end));
        // Nothing follows a beginning that is short.
        let is_all = head_length < GATHERED_BYTES as u64 || end <= head_length;
        if !is_all {
            // A thread that ended leaves a body that breaks off.
            let _ = order.send(Order::Part {
                start: start.max(head_length),
                length: length - head.len() as u64,
            });
        }
        let rest = stream::poll_fn(move |context| chunks.poll_recv(context));
        let head = (!head.is_empty()).then_some(Ok(head));
        Box::pin(stream::iter(head).chain(rest))
    }
}

fn begin(path: &str) -> Result<(File, Stat, Bytes), FileError> {
    let (mut file, stat) = open::to_read(path)?;
    let mut head = Vec::with_capacity(GATHERED_BYTES);
    (&mut file)
        .take(GATHERED_BYTES as u64)
        .read_to_end(&mut head)
        .map_err(|source| FileError::io("read", path, source))?;
    Ok((file, stat, head.into()))
}

/// Reads what is wanted until it is there or nobody wants it any more.
fn send(mut file: File, start: u64, length: u64, chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let (back, returned) = buffers::channel();
    let mut left = length;
    // Files of the kernel are best read in one go.
    let mut sought = match start {
        start if start == GATHERED_BYTES as u64 => Ok(()),
        start => file.seek(SeekFrom::Start(start)).map(drop),
    };
    while left > 0 {
        let mut buffer = returned.try_recv().unwrap_or_else(|_| vec![0; CHUNK_BYTES]);
        let wanted = usize::try_from(left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let read = std::mem::replace(&mut sought, Ok(()))
            .and_then(|()| read_some(&mut file, &mut buffer[..wanted]));
        let chunk = match read {
            Ok(0) => return,
            Ok(length) => {
                left -= length as u64;
                Ok(Bytes::from_owner(Lent {
                    buffer,
                    length,
                    back: back.clone(),
                }))
            }
            Err(error) => {
                left = 0;
                Err(error)
            }
        };
        if chunks.blocking_send(chunk).is_err() {
            return;
        }
    }
}

fn read_some(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// A buffer that comes back when its bytes are sent: fresh memory for every
/// chunk would cost more than reading it.
struct Lent {
    buffer: Vec<u8>,
    length: usize,
    back: buffers::Sender<Vec<u8>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The reader may be done.
        let _ = self.back.send(std::mem::take(&mut self.buffer));
    }
}
