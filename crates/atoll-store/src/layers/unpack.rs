//! Unpacks a tar stream below a directory, trusting nothing in it.
//!
//! Every name is resolved by the kernel with `openat2`, beneath the root and
//! through no symbolic link, so an archive can neither climb out nor write
//! through a link it brought along. Device nodes other than the overlay's
//! whiteout (character device 0:0) are refused.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use tar::EntryType;

use super::entries::{Described, for_each};
use super::sparse;
use super::xattr;

/// Longest path and longest part of one, as the kernel has them.
const PATH_BYTES: usize = 4095;
const COMPONENT_BYTES: usize = 255;
const COPY_BYTES: usize = 256 * 1024;
/// Owner, group and time of directories that the archive forgot to list.
const IMPLIED_DIRECTORY_MODE: u32 = 0o755;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The stream is not a tar archive, or cannot be read.
    #[error("cannot read the archive")]
    Archive(#[source] io::Error),
    /// The archive breaks the format.
    #[error("{0} in the archive is malformed")]
    Malformed(&'static str),
    /// A name points outside, or is no name at all.
    #[error("refusing the archive entry `{name}`: {reason}")]
    Refused {
        /// The name as the archive has it, shortened.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// The file system refused.
    #[error("cannot unpack `{name}`")]
    Write {
        /// The name as the archive has it, shortened.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Unpacks all of `reader` below `root`; returns the number of entries.
pub(crate) fn unpack(reader: &mut dyn Read, root: BorrowedFd<'_>) -> Result<u64, UnpackError> {
    let mut unpacker = Unpacker {
        root,
        parent: None,
        directory_times: Vec::new(),
        buffer: vec![0; COPY_BYTES],
        files: 0,
    };
    rustix::fs::fchmod(root, Mode::from_raw_mode(IMPLIED_DIRECTORY_MODE))
        .map_err(|error| UnpackError::Archive(error.into()))?;
    for_each(reader, &mut |entry, data| unpacker.entry(&entry, data))?;
    // Whatever follows the end marker is padding, but the writer wants to finish.
    io::copy(reader, &mut io::sink()).map_err(UnpackError::Archive)?;
    unpacker.finish()
}

struct Unpacker<'root> {
    root: BorrowedFd<'root>,
    /// The directory that was used last; archives name neighbours in a row.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Set at the end, because every new entry changes them.
    directory_times: Vec<(PathBuf, i64)>,
    buffer: Vec<u8>,
    files: u64,
}

impl Unpacker<'_> {
    fn entry(&mut self, entry: &Described, data: &mut dyn Read) -> Result<(), UnpackError> {
        let path = relative(&entry.name)?;
        let refused = |reason| UnpackError::Refused {
            name: shown(&entry.name),
            reason,
        };
        if entry.kind != EntryType::Regular
            && entry.kind != EntryType::Continuous
            && entry.size != 0
        {
            return Err(refused("it has data but is not a file"));
        }
        if entry.sparse_size.is_some() && entry.kind != EntryType::Regular {
            return Err(refused("it has holes but is not a file"));
        }
        self.files += 1;
        let failed = |source: Errno| failure(&entry.name, source);
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            if entry.kind != EntryType::Directory {
                return Err(refused("the root of a layer is a directory"));
            }
            self.directory_times.push((path, entry.mtime));
            return own(self.root, entry).map_err(failed);
        };
        let parent_path = path.parent().unwrap_or(Path::new("")).to_owned();
        self.enter(&parent_path, &entry.name)?;
        let parent = self
            .parent
            .as_ref()
            .map_or(self.root, |(_, directory)| directory.as_fd());
        match entry.kind {
            EntryType::Directory => {
                make_directory(parent, &name).map_err(failed)?;
                let directory = open_directory(parent, Path::new(&name)).map_err(failed)?;
                own(directory.as_fd(), entry).map_err(failed)?;
                self.directory_times.push((path, entry.mtime));
                return Ok(());
            }
            EntryType::Regular | EntryType::Continuous => {
                clear(parent, &name).map_err(failed)?;
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let file = rustix::fs::openat(parent, &name, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(failed)?;
                let mut file = std::fs::File::from(file);
                match entry.sparse_size {
                    None => copy_sparsely(data, &mut file, entry, &mut self.buffer)?,
                    Some(size) => copy_pieces(data, &mut file, entry, size)?,
                }
                own(file.as_fd(), entry).map_err(failed)?;
                return rustix::fs::futimens(&file, &times(entry.mtime)).map_err(failed);
            }
            EntryType::Link => {
                let target = relative(&entry.link)?;
                let file =
                    beneath(self.root, &target, OFlags::PATH | OFlags::NOFOLLOW).map_err(failed)?;
                let kind =
                    FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(failed)?.st_mode);
                if kind == FileType::Directory {
                    return Err(refused("a hard link to a directory"));
                }
                clear(parent, &name).map_err(failed)?;
                return rustix::fs::linkat(&file, "", parent, &name, AtFlags::EMPTY_PATH)
                    .map_err(failed);
            }
            EntryType::Symlink => {
                clear(parent, &name).map_err(failed)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&entry.link), parent, &name)
                    .map_err(failed)?;
            }
            EntryType::Fifo => {
                clear(parent, &name).map_err(failed)?;
                node(parent, &name, FileType::Fifo, entry.mode).map_err(failed)?;
            }
            EntryType::Char if entry.device == (0, 0) => {
                clear(parent, &name).map_err(failed)?;
                node(parent, &name, FileType::CharacterDevice, entry.mode).map_err(failed)?;
            }
            EntryType::Char | EntryType::Block => return Err(refused("it is a device node")),
            _ => return Err(refused("its kind is not known")),
        }
        own_unopened(parent, &name, entry).map_err(failed)
    }

    /// Makes `path` the current directory, creating what is missing of it.
    fn enter(&mut self, path: &Path, name: &[u8]) -> Result<(), UnpackError> {
        if path.as_os_str().is_empty() {
            self.parent = None;
            return Ok(());
        }
        if self
            .parent
            .as_ref()
            .is_some_and(|(current, _)| current == path)
        {
            return Ok(());
        }
        let directory = match beneath(self.root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => self.make_path(path),
            result => result,
        };
        let directory = directory.map_err(|error| match error {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR => UnpackError::Refused {
                name: shown(name),
                reason: "it would be written through something that is not a directory of the archive",
            },
            error => failure(name, error),
        })?;
        self.parent = Some((path.to_owned(), directory));
        Ok(())
    }

    fn make_path(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut made = PathBuf::new();
        let mut current = rustix::io::dup(self.root)?;
        for component in path.components() {
            made.push(component);
            make_directory(current.as_fd(), component.as_os_str())?;
            current = beneath(self.root, &made, OFlags::RDONLY | OFlags::DIRECTORY)?;
        }
        Ok(current)
    }

    fn finish(self) -> Result<u64, UnpackError> {
        // Children before parents is not needed: setting a time changes no other.
        for (path, mtime) in &self.directory_times {
            let name = path.as_os_str().as_bytes();
            let set = || {
                if name.is_empty() {
                    return rustix::fs::futimens(self.root, &times(*mtime));
                }
                let directory = beneath(self.root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                rustix::fs::futimens(directory, &times(*mtime))
            };
            match set() {
                // A later entry of the same archive put something else there.
                Ok(()) | Err(Errno::NOTDIR | Errno::NOENT | Errno::LOOP) => {}
                Err(error) => return Err(failure(name, error)),
            }
        }
        Ok(self.files)
    }
}

/// The path of an entry below the root, when it is one.
fn relative(name: &[u8]) -> Result<PathBuf, UnpackError> {
    let refused = |reason| {
        Err(UnpackError::Refused {
            name: shown(name),
            reason,
        })
    };
    if name.len() > PATH_BYTES {
        return refused("its name is longer than 4095 bytes");
    }
    if name.is_empty() || name.contains(&0) {
        return refused("its name is empty or holds a zero byte");
    }
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) if part.len() > COMPONENT_BYTES => {
                return refused("a part of its name is longer than 255 bytes");
            }
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => return refused("its name climbs with `..`"),
            Component::RootDir | Component::Prefix(_) => return refused("its name is absolute"),
        }
    }
    Ok(path)
}

/// Opens a path below `root` through no symbolic link. With `O_PATH` and
/// `O_NOFOLLOW` the last part may itself be one.
fn beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn open_directory(parent: BorrowedFd<'_>, name: &Path) -> Result<OwnedFd, Errno> {
    beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Makes a directory; one that is already there is kept, anything else replaced.
fn make_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(IMPLIED_DIRECTORY_MODE)) {
        Err(Errno::EXIST) => {}
        result => return result,
    }
    let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        Ok(())
    } else {
        Err(Errno::NOTDIR)
    }
}

/// Removes what an earlier entry of the same name left; a directory stays and fails.
fn clear(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

fn node(parent: BorrowedFd<'_>, name: &OsStr, kind: FileType, mode: u32) -> Result<(), Errno> {
    rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(mode), 0)
}

/// Owner, attributes and mode of an open file or directory, in the order in
/// which none undoes another: a change of owner clears setuid and capabilities.
fn own(file: BorrowedFd<'_>, entry: &Described) -> Result<(), Errno> {
    rustix::fs::fchown(
        file,
        Some(Uid::from_raw(entry.uid)),
        Some(Gid::from_raw(entry.gid)),
    )?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| xattr::is_kept(name)) {
        rustix::fs::fsetxattr(file, name.as_str(), value, XattrFlags::empty())?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode))
}

/// The same for what cannot be opened: links, pipes, whiteouts.
fn own_unopened(parent: BorrowedFd<'_>, name: &OsStr, entry: &Described) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    rustix::fs::chownat(
        parent,
        name,
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    let path = Path::new("/proc/self/fd")
        .join(parent.as_raw_fd().to_string())
        .join(name);
    for (attribute, value) in entry.xattrs.iter().filter(|(name, _)| xattr::is_kept(name)) {
        rustix::fs::lsetxattr(&path, attribute.as_str(), value, XattrFlags::empty())?;
    }
    if entry.kind != EntryType::Symlink {
        // Just made above as a pipe or whiteout, so this follows nothing.
        rustix::fs::chmodat(
            parent,
            name,
            Mode::from_raw_mode(entry.mode),
            AtFlags::empty(),
        )?;
    }
    rustix::fs::utimensat(parent, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
}

fn times(mtime: i64) -> Timestamps {
    let time = Timespec {
        tv_sec: mtime,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Copies the data of an entry; runs of zeros become holes.
fn copy_sparsely(
    data: &mut dyn Read,
    file: &mut std::fs::File,
    entry: &Described,
    buffer: &mut [u8],
) -> Result<(), UnpackError> {
    let write = |source| UnpackError::Write {
        name: shown(&entry.name),
        source,
    };
    let mut copied = 0_u64;
    loop {
        let length = data.read(buffer).map_err(UnpackError::Archive)?;
        if length == 0 {
            break;
        }
        copied += length as u64;
        if buffer[..length].iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Start(copied)).map_err(write)?;
        } else {
            file.write_all(&buffer[..length]).map_err(write)?;
        }
    }
    if copied != entry.size {
        return Err(UnpackError::Malformed("the end, which comes too early,"));
    }
    file.set_len(copied).map_err(write)
}

/// Copies the data of a file with holes, piece by piece.
fn copy_pieces(
    data: &mut dyn Read,
    file: &mut std::fs::File,
    entry: &Described,
    size: u64,
) -> Result<(), UnpackError> {
    let write = |source| UnpackError::Write {
        name: shown(&entry.name),
        source,
    };
    let pieces = sparse::read_map(data, size, entry.size)?;
    // Before the data: a size that cannot be is refused at once.
    file.set_len(size).map_err(write)?;
    for piece in pieces {
        file.seek(SeekFrom::Start(piece.offset)).map_err(write)?;
        let copied = io::copy(&mut data.take(piece.length), file).map_err(write)?;
        if copied != piece.length {
            return Err(UnpackError::Malformed("the end, which comes too early,"));
        }
    }
    Ok(())
}

fn failure(name: &[u8], error: Errno) -> UnpackError {
    UnpackError::Write {
        name: shown(name),
        source: error.into(),
    }
}

/// A name fit for a message.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name)
        .chars()
        .take(120)
        .collect::<String>()
        .escape_debug()
        .to_string()
}
