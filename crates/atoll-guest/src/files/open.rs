//! Regular files, opened and made.
//!
//! Links are followed, as `open(2)` does: whoever holds the token may go
//! wherever root may. A link to nothing is a file that is made where the
//! link points.

use std::fs::{self, DirBuilder, File, Metadata as Stat, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use super::FileError;
use crate::metadata::{self, Metadata, MetadataError};
use crate::users::User;

/// How often a path may appear and vanish under us.
const ATTEMPTS: usize = 8;

/// Opens a file to read.
pub(super) fn to_read(path: &str) -> Result<(File, Stat), FileError> {
    // Looking first: the mere opening of a pipe is felt at its other end.
    let stat = fs::metadata(path).map_err(|source| FileError::io("open", path, source))?;
    require_regular(path, &stat)?;
    let file = options()
        .read(true)
        .open(path)
        .map_err(|source| FileError::io("open", path, source))?;
    // The path may have been swapped since.
    let stat = regular(path, &file)?;
    Ok((file, stat))
}

/// Opens a file to be written from its start, and makes it and what is above
/// it where they are missing. To be called in the user's name.
///
/// Watchers of a new file see exactly: create, owner. Nothing here touches
/// attributes that nobody asked for.
pub(super) fn to_write(path: &str, user: &User, metadata: &Metadata) -> Result<File, FileError> {
    let failed = |operation, source| FileError::io(operation, path, source);
    let (file, origin) = open_or_make(path)?;
    let stat = regular(path, &file)?;
    own(&file, &stat, user).map_err(|source| failed("give the owner to", source))?;
    match origin {
        Origin::Made if metadata.is_empty() => {}
        Origin::Made | Origin::Found => {
            metadata::replace(&file, metadata).map_err(|source| match source.raw_os_error() {
                Some(libc::ENOSPC | libc::E2BIG) => MetadataError::NoRoom.into(),
                _ => failed("keep the metadata of", source),
            })?;
        }
    }
    if stat.len() > 0 {
        file.set_len(0)
            .map_err(|source| failed("truncate", source))?;
    }
    Ok(file)
}

/// Makes a file that was not there, and what is above it.
pub(super) fn make_new(path: &Path) -> io::Result<File> {
    for _ in 0..ATTEMPTS {
        match new_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_parents(path)?,
            other => return other,
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Gives a file to the user. A file system without owners refuses that, which
/// matters only where the file is not the user's already.
pub(super) fn own(file: &File, stat: &Stat, user: &User) -> io::Result<()> {
    match fchown(file, Some(user.uid), Some(user.gid)) {
        Err(_) if (stat.uid(), stat.gid()) == (user.uid, user.gid) => Ok(()),
        other => other,
    }
}

/// What is opened, when it is a regular file.
pub(super) fn regular(path: &str, file: &File) -> Result<Stat, FileError> {
    let stat = file
        .metadata()
        .map_err(|source| FileError::io("stat", path, source))?;
    require_regular(path, &stat)?;
    Ok(stat)
}

/// Refuses everything but a regular file.
pub(super) fn require_regular(path: &str, stat: &Stat) -> Result<(), FileError> {
    let kind = stat.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(FileError::NotRegular {
        path: path.to_owned(),
        what,
    })
}

/// Where an opened file comes from.
#[derive(Debug, Clone, Copy)]
enum Origin {
    Made,
    Found,
}

/// `O_CREAT` comes only when nothing is there, and then with `O_EXCL`: where
/// `fs.protected_regular` is set, the kernel refuses even root to open
/// somebody's file in `/tmp` with `O_CREAT` alone.
fn open_or_make(path: &str) -> Result<(File, Origin), FileError> {
    let failed = |source| FileError::io("open", path, source);
    for _ in 0..ATTEMPTS {
        match fs::metadata(path) {
            Ok(stat) => {
                require_regular(path, &stat)?;
                match options().write(true).open(path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    other => return Ok((other.map_err(failed)?, Origin::Found)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        match new_file(Path::new(path)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_parents(Path::new(path)).map_err(failed)?;
            }
            other => return Ok((other.map_err(failed)?, Origin::Made)),
        }
    }
    // There and not there: a link to nothing.
    let file = options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666)
        .open(path)
        .map_err(failed)?;
    Ok((file, Origin::Found))
}

fn new_file(path: &Path) -> io::Result<File> {
    options()
        .write(true)
        .create_new(true)
        .mode(0o666)
        .open(path)
}

fn make_parents(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o755).create(parent)
}

/// Not waiting for a writer keeps pipes from hanging us, and no terminal
/// becomes ours.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}
