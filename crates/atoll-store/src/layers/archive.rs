//! A directory tree as a tar stream that is the same bytes for the same tree.
//!
//! Entries are sorted by name, owners are numbers, times are whole seconds.
//! Long names and extended attributes are PAX records; large holes in files stay
//! holes (`sparse.rs`). Sockets are left out
//! (they mean nothing without their process). What the kernel's overlay keeps
//! for its own bookkeeping is left out too: it holds file handles of one disk.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use super::sparse::{self, Piece};
use super::xattr;

/// Bytes a name may have in a plain header.
const NAME_BYTES: usize = 100;
const BLOCK_BYTES: usize = 512;
const COPY_BYTES: usize = 256 * 1024;

/// Most bytes of files in one layer, holes of sparse files included.
const TREE_BYTES_MAX: u64 = 64 << 30;

/// Why a tree could not be archived.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A part of the tree cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The path below the tree.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The tree holds something a layer must not hold.
    #[error("{path} is {what}, which a layer cannot hold")]
    Unsupported {
        /// The path below the tree.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A sparse file can claim any size, and is read as a whole sooner or later.
    #[error("with {path} the tree holds more than {} GiB", TREE_BYTES_MAX >> 30)]
    TooLarge {
        /// The path below the tree.
        path: PathBuf,
    },
    /// The file changed while it was read.
    #[error("{0} changed while it was read")]
    Changed(PathBuf),
    /// The receiver of the stream failed.
    #[error("cannot write the archive")]
    Write(#[source] io::Error),
}

/// Writes the tree at `root` as tar, its own entry (`./`) first.
pub(crate) fn write_tree(root: &Path, out: &mut dyn Write) -> Result<(), ArchiveError> {
    let mut writer = TreeWriter {
        root,
        out,
        links: HashMap::new(),
        buffer: vec![0; COPY_BYTES],
        total: 0,
    };
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        if !writer.entry(&relative)? {
            continue;
        }
        let mut names = writer.names(&relative)?;
        // The stack gives back the last first.
        names.sort_unstable_by(|left, right| right.cmp(left));
        pending.extend(names.into_iter().map(|name| relative.join(name)));
    }
    writer.write(&[0; 2 * BLOCK_BYTES])
}

struct TreeWriter<'tree> {
    root: &'tree Path,
    out: &'tree mut dyn Write,
    /// First path of each file that has several.
    links: HashMap<(u64, u64), PathBuf>,
    buffer: Vec<u8>,
    /// Bytes of files so far, holes included.
    total: u64,
}

impl TreeWriter<'_> {
    /// Writes one entry; true when it is a directory to descend into.
    fn entry(&mut self, relative: &Path) -> Result<bool, ArchiveError> {
        let path = self.root.join(relative);
        let read = |source| ArchiveError::Read {
            path: relative.to_owned(),
            source,
        };
        let metadata = fs::symlink_metadata(&path).map_err(read)?;
        let kind = metadata.file_type();
        if kind.is_socket() {
            return Ok(false);
        }
        let mut records = Vec::new();
        if !kind.is_dir() && metadata.nlink() > 1 {
            let identity = (metadata.dev(), metadata.ino());
            if let Some(first) = self.links.get(&identity) {
                let first = first.as_os_str().as_bytes().to_owned();
                self.header(relative, &metadata, EntryType::Link, 0, &first, records)?;
                return Ok(false);
            }
            self.links.insert(identity, relative.to_owned());
        }
        for (name, value) in xattr::kept(&path).map_err(read)? {
            if name == "trusted.overlay.metacopy" {
                let what = "a copy of attributes without the data";
                return Err(ArchiveError::Unsupported {
                    path: relative.to_owned(),
                    what,
                });
            }
            records.push((format!("SCHILY.xattr.{name}"), value));
        }
        if kind.is_dir() {
            self.header(relative, &metadata, EntryType::Directory, 0, &[], records)?;
            return Ok(true);
        }
        if kind.is_symlink() {
            let target = fs::read_link(&path)
                .map_err(read)?
                .into_os_string()
                .into_vec();
            self.header(relative, &metadata, EntryType::Symlink, 0, &target, records)?;
        } else if kind.is_fifo() {
            self.header(relative, &metadata, EntryType::Fifo, 0, &[], records)?;
        } else if kind.is_char_device() && metadata.rdev() == 0 {
            self.header(relative, &metadata, EntryType::Char, 0, &[], records)?;
        } else if kind.is_file() {
            self.file(&path, relative, &metadata, records)?;
        } else {
            return Err(ArchiveError::Unsupported {
                path: relative.to_owned(),
                what: "a device",
            });
        }
        Ok(false)
    }

    fn names(&self, relative: &Path) -> Result<Vec<OsString>, ArchiveError> {
        let read = |source| ArchiveError::Read {
            path: relative.to_owned(),
            source,
        };
        let entries = fs::read_dir(self.root.join(relative)).map_err(read)?;
        entries
            .map(|entry| entry.map(|entry| entry.file_name()).map_err(read))
            .collect()
    }

    fn header(
        &mut self,
        relative: &Path,
        metadata: &Metadata,
        kind: EntryType,
        size: u64,
        target: &[u8],
        mut records: Vec<(String, Vec<u8>)>,
    ) -> Result<(), ArchiveError> {
        let mut name = b"./".to_vec();
        name.extend_from_slice(relative.as_os_str().as_bytes());
        if kind == EntryType::Directory && !relative.as_os_str().is_empty() {
            name.push(b'/');
        }
        let mut link = target.to_vec();
        if kind == EntryType::Link {
            link.splice(0..0, *b"./");
        }
        if name.len() > NAME_BYTES {
            records.push(("path".to_owned(), name.clone()));
        }
        if link.len() > NAME_BYTES {
            records.push(("linkpath".to_owned(), link.clone()));
        }
        if !records.is_empty() {
            records.sort();
            let body = pax_body(&records);
            let mut header = plain_header(EntryType::XHeader, b"./PaxHeaders", &[]);
            header.set_size(body.len() as u64);
            header.set_mode(0o644);
            self.write_header(header)?;
            self.write(&body)?;
            self.pad(body.len() as u64)?;
        }
        let mut header = plain_header(kind, &name, &link);
        header.set_size(size);
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(u64::from(metadata.uid()));
        header.set_gid(u64::from(metadata.gid()));
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        if kind == EntryType::Char {
            // A plain header always has these fields.
            let _ = header
                .set_device_major(0)
                .and_then(|()| header.set_device_minor(0));
        }
        self.write_header(header)
    }

    fn file(
        &mut self,
        path: &Path,
        relative: &Path,
        metadata: &Metadata,
        mut records: Vec<(String, Vec<u8>)>,
    ) -> Result<(), ArchiveError> {
        let size = metadata.len();
        self.total = self.total.saturating_add(size);
        if self.total > TREE_BYTES_MAX {
            return Err(ArchiveError::TooLarge {
                path: relative.to_owned(),
            });
        }
        let read = |source| ArchiveError::Read {
            path: relative.to_owned(),
            source,
        };
        let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut file = File::options()
            .read(true)
            .custom_flags(no_follow)
            .open(path)
            .map_err(read)?;
        let kind = EntryType::Regular;
        let Some(pieces) = sparse::pieces(&file, size).map_err(read)? else {
            self.header(relative, metadata, kind, size, &[], records)?;
            let whole = Piece {
                offset: 0,
                length: size,
            };
            self.piece(&mut file, relative, whole)?;
            // One byte more shows a file that has grown.
            if file.read(&mut [0]).map_err(read)? != 0 {
                return Err(ArchiveError::Changed(relative.to_owned()));
            }
            return self.pad(size);
        };
        let name = [b"./", relative.as_os_str().as_bytes()].concat();
        records.push(("GNU.sparse.major".to_owned(), b"1".to_vec()));
        records.push(("GNU.sparse.minor".to_owned(), b"0".to_vec()));
        records.push(("GNU.sparse.name".to_owned(), name));
        let real = size.to_string().into_bytes();
        records.push(("GNU.sparse.realsize".to_owned(), real));
        let map = sparse::map(&pieces);
        let data: u64 = pieces.iter().map(|piece| piece.length).sum();
        let stored = map.len() as u64 + data;
        self.header(relative, metadata, kind, stored, &[], records)?;
        self.write(&map)?;
        for piece in pieces {
            self.piece(&mut file, relative, piece)?;
        }
        if file.metadata().map_err(read)?.len() != size {
            return Err(ArchiveError::Changed(relative.to_owned()));
        }
        self.pad(data)
    }

    fn piece(
        &mut self,
        file: &mut File,
        relative: &Path,
        piece: Piece,
    ) -> Result<(), ArchiveError> {
        let read = |source| ArchiveError::Read {
            path: relative.to_owned(),
            source,
        };
        file.seek(SeekFrom::Start(piece.offset)).map_err(read)?;
        let mut data = file.take(piece.length);
        let mut seen = 0;
        loop {
            let length = data.read(&mut self.buffer).map_err(read)?;
            if length == 0 {
                break;
            }
            seen += length as u64;
            self.out
                .write_all(&self.buffer[..length])
                .map_err(ArchiveError::Write)?;
        }
        if seen == piece.length {
            Ok(())
        } else {
            Err(ArchiveError::Changed(relative.to_owned()))
        }
    }

    fn write_header(&mut self, mut header: Header) -> Result<(), ArchiveError> {
        header.set_cksum();
        self.write(header.as_bytes())
    }

    /// Fills the last block of a body of `size` bytes.
    fn pad(&mut self, size: u64) -> Result<(), ArchiveError> {
        let used = usize::try_from(size % BLOCK_BYTES as u64).unwrap_or(0);
        if used == 0 {
            Ok(())
        } else {
            self.write(&[0; BLOCK_BYTES][used..])
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.out.write_all(bytes).map_err(ArchiveError::Write)
    }
}

/// A header with names cut to what fits; a PAX record carries longer ones.
fn plain_header(kind: EntryType, name: &[u8], link: &[u8]) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    let fields = header.as_old_mut();
    let name = &name[..name.len().min(NAME_BYTES)];
    fields.name[..name.len()].copy_from_slice(name);
    let link = &link[..link.len().min(NAME_BYTES)];
    fields.linkname[..link.len()].copy_from_slice(link);
    header
}

/// `<length> <key>=<value>\n` for each record, the length counting itself.
fn pax_body(records: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        body.extend_from_slice(format!("{length} {key}=").as_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    body
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn pax_lengths_count_themselves() {
        for size in [0, 1, 80, 88, 89, 90, 91, 900, 989, 990, 9990] {
            let body = pax_body(&[("k".to_owned(), vec![b'v'; size])]);
            let digits = body.iter().position(|byte| *byte == b' ').unwrap();
            let length: usize = std::str::from_utf8(&body[..digits])
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(length, body.len(), "value of {size} bytes");
        }
    }

    #[test]
    fn the_same_tree_gives_the_same_bytes() {
        let make = |reverse: bool| {
            let tree = tempfile::tempdir().unwrap();
            let mut names = vec!["a", "b", "c"];
            if reverse {
                names.reverse();
            }
            for name in names {
                fs::create_dir(tree.path().join(name)).unwrap();
                fs::write(tree.path().join(name).join("file"), name).unwrap();
            }
            for path in ["a/file", "b/file", "c/file", "a", "b", "c", "."] {
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
                File::open(tree.path().join(path))
                    .unwrap()
                    .set_modified(time)
                    .unwrap();
            }
            let mut bytes = Vec::new();
            write_tree(tree.path(), &mut bytes).unwrap();
            bytes
        };
        assert_eq!(make(false), make(true));
    }

    /// A tree with files whose holes are at the front, in the middle and at the end.
    fn tree_with_holes() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (name, size, data) in [
            ("nothing", 3 << 30, None),
            ("front", (1 << 30) + 5, Some((1 << 30, b"5tail".as_slice()))),
            ("middle", 2 << 30, Some((1 << 20, b"data".as_slice()))),
            ("back", 1 << 30, Some((0, b"head".as_slice()))),
        ] {
            let mut file = File::create(tree.path().join(name)).unwrap();
            if let Some((offset, data)) = data {
                file.seek(SeekFrom::Start(offset)).unwrap();
                file.write_all(data).unwrap();
            }
            file.set_len(size).unwrap();
        }
        tree
    }

    /// Size of each file, what it takes on disk in MiB, and its data.
    fn seen(tree: &Path) -> Vec<(String, u64, u64, Vec<u8>)> {
        let names = ["nothing", "front", "middle", "back"];
        let see = |name: &str| {
            let file = File::open(tree.join(name)).unwrap();
            let metadata = file.metadata().unwrap();
            let mut data = Vec::new();
            for piece in sparse::pieces(&file, metadata.len()).unwrap().unwrap() {
                let mut file = &file;
                file.seek(SeekFrom::Start(piece.offset)).unwrap();
                file.take(piece.length).read_to_end(&mut data).unwrap();
            }
            data.retain(|byte| *byte != 0);
            let taken = (metadata.blocks() * 512) >> 20;
            (name.to_owned(), metadata.len(), taken, data)
        };
        names.map(see).to_vec()
    }

    #[test]
    fn holes_stay_holes_and_cost_nothing() {
        let tree = tree_with_holes();
        let mut bytes = Vec::new();
        write_tree(tree.path(), &mut bytes).unwrap();
        assert!(bytes.len() < 64 * 1024, "{}", bytes.len());
        let unpacked = tempfile::tempdir().unwrap();
        let root = File::open(unpacked.path()).unwrap();
        super::super::unpack::unpack(&mut bytes.as_slice(), root.as_fd()).unwrap();
        assert_eq!(seen(unpacked.path()), seen(tree.path()));
    }

    #[test]
    fn other_programs_read_our_holes_and_we_read_theirs() {
        let tree = tree_with_holes();
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("archive.tar");
        write_tree(tree.path(), &mut File::create(&archive).unwrap()).unwrap();
        let (theirs, ours) = (
            directory.path().join("theirs"),
            directory.path().join("ours"),
        );
        fs::create_dir(&theirs).unwrap();
        fs::create_dir(&ours).unwrap();
        let tar = |arguments: &[&str], place: &Path| {
            let mut tar = std::process::Command::new("tar");
            tar.args(arguments).arg(&archive).arg("-C").arg(place);
            if arguments.contains(&"-cSf") {
                tar.arg(".");
            }
            assert!(tar.status().unwrap().success());
        };
        tar(&["-xf"], &theirs);
        assert_eq!(seen(&theirs), seen(tree.path()));
        tar(
            &["--format=pax", "--sparse-version=1.0", "-cSf"],
            tree.path(),
        );
        let root = File::open(&ours).unwrap();
        let mut archive = File::open(&archive).unwrap();
        super::super::unpack::unpack(&mut archive, root.as_fd()).unwrap();
        assert_eq!(seen(&ours), seen(tree.path()));
    }
}
