//! What is in a directory, read entry by entry as it comes: the answer may be
//! long, and its bytes are never in memory as a whole.

use atoll_protocol::envd::filesystem::EntryInfo;
use bytes::{Buf, BytesMut};

use crate::answer::ANSWER_BYTES_MAX;
use crate::entry::Entry;
use crate::error::GuestError;
use crate::messages::decode;

/// Longest answer, in bytes.
const LIST_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Most memory of its entries for every byte of it: what an honest answer
/// needs. A lying one makes hundreds of bytes out of two.
const MEMORY_PER_BYTE: usize = 2;

/// Key of `ListDirResponse.entries`: field 1, with a length.
const ENTRY_KEY: u8 = 0x0a;

/// A list that is still coming.
#[derive(Debug)]
pub(crate) struct Listing {
    bytes_max: usize,
    /// Bytes of the entry that is not all there.
    buffer: BytesMut,
    received: usize,
    memory: usize,
    entries: Vec<Entry>,
}

impl Listing {
    /// A list of at most so many bytes, and never of more than the usual bound.
    pub(crate) fn within(bytes_max: Option<usize>) -> Self {
        Self {
            bytes_max: bytes_max.map_or(LIST_BYTES_MAX, |most| most.min(LIST_BYTES_MAX)),
            buffer: BytesMut::new(),
            received: 0,
            memory: 0,
            entries: Vec::new(),
        }
    }

    /// Adds bytes as they came.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.received = self.received.saturating_add(bytes.len());
        if self.received > self.bytes_max {
            return Err(too_large("a list", self.bytes_max));
        }
        self.buffer.extend_from_slice(bytes);
        while let Some(entry) = self.next_entry()? {
            self.memory = self.memory.saturating_add(entry.memory_bytes());
            let memory_max = self.bytes_max * MEMORY_PER_BYTE;
            if self.memory > memory_max {
                return Err(too_large("a list with entries", memory_max));
            }
            self.entries.push(entry);
        }
        Ok(())
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, GuestError> {
        let Some((&key, rest)) = self.buffer.split_first() else {
            return Ok(None);
        };
        if key != ENTRY_KEY {
            return Err(GuestError::Protocol(
                "a list has something that is no entry".to_owned(),
            ));
        }
        let Some((length, length_bytes)) = read_length(rest)? else {
            return Ok(None);
        };
        let start = 1 + length_bytes;
        let Some(bytes) = self.buffer.get(start..start + length) else {
            return Ok(None);
        };
        let entry = Entry::read(decode::<EntryInfo>(bytes)?)?;
        if entry.file_name().is_err() {
            return Err(GuestError::Protocol(format!(
                "a list has an entry whose name is none: {:?}",
                entry.name
            )));
        }
        self.buffer.advance(start + length);
        Ok(Some(entry))
    }

    /// The list, when it did not break off inside an entry.
    pub(crate) fn finish(self) -> Result<Vec<Entry>, GuestError> {
        if self.buffer.is_empty() {
            Ok(self.entries)
        } else {
            Err(GuestError::Protocol(
                "a list ended inside an entry".to_owned(),
            ))
        }
    }
}

/// A length of at most [`ANSWER_BYTES_MAX`] and the bytes it takes; `None`
/// while it is not all there.
fn read_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, GuestError> {
    let mut length = 0;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        length |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return match usize::try_from(length) {
                Ok(length) if length <= ANSWER_BYTES_MAX => Ok(Some((length, index + 1))),
                Ok(_) | Err(_) => Err(too_large("an entry", ANSWER_BYTES_MAX)),
            };
        }
    }
    if bytes.len() < 5 {
        Ok(None)
    } else {
        Err(too_large("an entry", ANSWER_BYTES_MAX))
    }
}

fn too_large(what: &'static str, limit: usize) -> GuestError {
    GuestError::TooLarge { what, limit }
}
