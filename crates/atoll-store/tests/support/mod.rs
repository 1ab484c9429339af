//! What the tests of layers share.

use std::fs;
use std::io;

use atoll_store::{Blobs, Layers};
use tar::{EntryType, Header};
use tempfile::TempDir;

pub(crate) fn open(home: &TempDir) -> Layers {
    Layers::open(home.path(), Blobs::open(home.path()).unwrap()).unwrap()
}

/// Names left in the layers directory and among the blobs.
pub(crate) fn leftovers(home: &TempDir) -> Vec<String> {
    let mut names = Vec::new();
    for directory in ["layers", "blobs/sha256", "blobs/incoming"] {
        for entry in fs::read_dir(home.path().join(directory))
            .into_iter()
            .flatten()
        {
            names.push(format!(
                "{directory}/{}",
                entry.unwrap().file_name().to_string_lossy()
            ));
        }
    }
    names
}

/// One entry of a hand-made archive: kind, name, link or content.
pub(crate) fn entry(kind: EntryType, name: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let has_data = !matches!(kind, EntryType::Symlink | EntryType::Link);
    header.set_size(if has_data { rest.len() as u64 } else { 0 });
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    if !has_data {
        header.as_old_mut().linkname[..rest.len()].copy_from_slice(rest);
    }
    if matches!(kind, EntryType::Char | EntryType::Block) {
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    if has_data {
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

pub(crate) fn archive(entries: &[Vec<u8>]) -> io::Cursor<Vec<u8>> {
    let mut bytes = entries.concat();
    bytes.extend_from_slice(&[0; 1024]);
    io::Cursor::new(bytes)
}
