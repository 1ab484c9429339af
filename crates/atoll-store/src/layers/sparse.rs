//! Files with holes, in GNU's PAX format 1.0: a map of where data is, then the
//! data. Without it every hole would be read, hashed and stored as zeros, and a
//! sandbox stands still for as long as that takes.
//!
//! The map of an archive is as hostile as the rest of it: its numbers are bounded
//! and have to describe exactly the bytes that follow.

use std::fs::File;
use std::io::{self, Read};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::UnpackError;

/// Holes of fewer bytes are stored as zeros, so that ordinary files look the same
/// wherever they come from.
const HOLES_MIN: u64 = 1024 * 1024;
/// Pieces of one file; what follows the last but one is one piece, holes and all.
const PIECES_MAX: usize = 16 * 1024;
/// Digits of the largest number.
const DIGITS_MAX: usize = 20;
const BLOCK_BYTES: usize = 512;

/// Bytes of a file that are not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Where the data of a file of `size` bytes is; `None` when its holes are not
/// worth the trouble.
pub(super) fn pieces(file: &File, size: u64) -> io::Result<Option<Vec<Piece>>> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut position = 0;
    while position < size {
        let offset = match rustix::fs::seek(file, SeekFrom::Data(position)) {
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            // This file system knows of no holes.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(None),
            found => found?.min(size),
        };
        let end = if pieces.len() + 1 == PIECES_MAX {
            size
        } else {
            rustix::fs::seek(file, SeekFrom::Hole(offset))?.min(size)
        };
        if end > offset {
            let length = end - offset;
            pieces.push(Piece { offset, length });
        }
        position = end;
    }
    if position < size {
        // GNU's tar takes the end of the file from the last piece.
        let (offset, length) = (size, 0);
        pieces.push(Piece { offset, length });
    }
    let data: u64 = pieces.iter().map(|piece| piece.length).sum();
    Ok((size.saturating_sub(data) >= HOLES_MIN).then_some(pieces))
}

/// The map in front of the data, with its padding.
pub(super) fn map(pieces: &[Piece]) -> Vec<u8> {
    let mut map = format!("{}\n", pieces.len());
    for Piece { offset, length } in pieces {
        map.push_str(&format!("{offset}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK_BYTES), 0);
    map
}

/// What an entry says of its holes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    /// Bytes of the file, holes included.
    pub(super) size: Option<u64>,
}

impl Claim {
    /// The size of the file, when this is the form that is understood.
    pub(super) fn size(&self) -> Result<u64, UnpackError> {
        match (self.major, self.minor, self.size) {
            (Some(1), Some(0), Some(size)) => Ok(size),
            _ => Err(UnpackError::Malformed(
                "a sparse file, which is supported in GNU's PAX format 1.0 only,",
            )),
        }
    }
}

/// Reads the map of a file of `size` bytes, for which the archive stores `stored`.
pub(super) fn read_map(
    data: &mut dyn Read,
    size: u64,
    stored: u64,
) -> Result<Vec<Piece>, UnpackError> {
    let malformed = UnpackError::Malformed("the map of a sparse file");
    let mut numbers = Numbers {
        data,
        block: [0; BLOCK_BYTES],
        used: BLOCK_BYTES,
        read: 0,
    };
    let count = usize::try_from(numbers.next()?).unwrap_or(usize::MAX);
    if count > PIECES_MAX + 1 {
        return Err(malformed);
    }
    let mut pieces = Vec::with_capacity(count);
    let (mut end, mut total) = (0_u64, 0_u64);
    for _ in 0..count {
        let (offset, length) = (numbers.next()?, numbers.next()?);
        let after = offset.checked_add(length);
        match after {
            Some(after) if offset >= end && after <= size => end = after,
            _ => return Err(malformed),
        }
        total += length;
        pieces.push(Piece { offset, length });
    }
    if numbers.read.checked_add(total) != Some(stored) {
        return Err(malformed);
    }
    Ok(pieces)
}

/// Numbers in lines, in whole blocks.
struct Numbers<'data> {
    data: &'data mut dyn Read,
    block: [u8; BLOCK_BYTES],
    used: usize,
    read: u64,
}

impl Numbers<'_> {
    fn next(&mut self) -> Result<u64, UnpackError> {
        let malformed = || UnpackError::Malformed("the map of a sparse file");
        let mut number = 0_u64;
        for digits in 0..=DIGITS_MAX {
            let byte = self.byte()?;
            if byte == b'\n' {
                return if digits == 0 {
                    Err(malformed())
                } else {
                    Ok(number)
                };
            }
            if !byte.is_ascii_digit() {
                break;
            }
            let digit = u64::from(byte - b'0');
            let more = number.checked_mul(10).and_then(|it| it.checked_add(digit));
            number = more.ok_or_else(malformed)?;
        }
        Err(malformed())
    }

    fn byte(&mut self) -> Result<u8, UnpackError> {
        if self.used == BLOCK_BYTES {
            let read = self.data.read_exact(&mut self.block);
            read.map_err(UnpackError::Archive)?;
            self.read += BLOCK_BYTES as u64;
            self.used = 0;
        }
        self.used += 1;
        Ok(self.block[self.used - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, length: u64) -> Piece {
        Piece { offset, length }
    }

    #[test]
    fn a_map_comes_back_as_it_was_written() {
        let many: Vec<Piece> = (0..2000).map(|at| piece(at * 4096, 100 + at)).collect();
        for pieces in [vec![], vec![piece(7, 9)], many] {
            let map = map(&pieces);
            let data: u64 = pieces.iter().map(|piece| piece.length).sum();
            let stored = map.len() as u64 + data;
            let found = read_map(&mut map.as_slice(), 1 << 40, stored).unwrap();
            assert_eq!(found, pieces);
        }
    }

    #[test]
    fn maps_that_lie_are_refused() {
        let block = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            bytes
        };
        for text in [
            "",
            "\n",
            "x\n",
            "-1\n",
            "1\n0\n",
            "1\n0\n11\n",
            "1\n5\n6\n",
            "2\n4\n2\n0\n2\n",
            "2\n0\n4\n3\n2\n",
            "1\n18446744073709551615\n2\n",
            "1\n0\n99999999999999999999\n",
            "99999999\n",
            "000000000000000000000000000001\n0\n1\n",
        ] {
            let bytes = block(text);
            let found = read_map(&mut bytes.as_slice(), 10, 512 + 4);
            assert!(found.is_err(), "{text:?}: {found:?}");
        }
        // The control: the same numbers, true.
        let bytes = block("2\n0\n2\n4\n2\n");
        let found = read_map(&mut bytes.as_slice(), 10, 512 + 4).unwrap();
        assert_eq!(found, [piece(0, 2), piece(4, 2)]);
    }

    #[test]
    fn only_large_holes_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(pieces(&file, 8192).unwrap(), None);
        file.set_len(1 << 20).unwrap();
        assert_eq!(pieces(&file, 1 << 20).unwrap(), None);
        file.set_len(1 << 33).unwrap();
        let found = pieces(&file, 1 << 33).unwrap().unwrap();
        assert_eq!(found, [piece(0, 8192), piece(1 << 33, 0)]);
    }
}
