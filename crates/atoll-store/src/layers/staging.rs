//! Directories that become layers, and layers that become nothing.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, RenameFlags};
use rustix::io::Errno;
use tempfile::TempDir;

use super::LayerError;
use crate::StateWrite;

/// Prefix of directories that are being filled or emptied.
const PREFIX: &str = ".incoming-";

/// A locked temporary directory beside the layers, gone when dropped.
#[derive(Debug)]
pub(super) struct Staging {
    // Dropped before the lock is released.
    directory: TempDir,
    lock: File,
}

impl Staging {
    pub(super) fn new(layers: &Path) -> Result<Self, LayerError> {
        let failed = |source| LayerError::Directory {
            path: layers.to_owned(),
            source,
        };
        loop {
            let directory = tempfile::Builder::new()
                .prefix(PREFIX)
                .tempdir_in(layers)
                .map_err(failed)?;
            // A sweep may take the lock, or the directory, in between: then another try.
            let lock = match File::open(directory.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result.map_err(failed)?,
            };
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
                Ok(()) if directory.path().exists() => return Ok(Self { directory, lock }),
                Ok(()) => {}
            }
        }
    }

    /// The directory to fill.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Makes everything in it durable, then gives it its name. A layer that
    /// is there already stays: the name is the digest, so both are the same.
    pub(super) fn commit(self, target: &Path) -> Result<(), LayerError> {
        let failed = |source| LayerError::Directory {
            path: target.to_owned(),
            source,
        };
        rustix::fs::syncfs(&self.lock).map_err(|error| failed(error.into()))?;
        let current = rustix::fs::CWD;
        let from = self.directory.path();
        match StateWrite::LayerTree.around(|| {
            rustix::fs::renameat_with(current, from, current, target, RenameFlags::NOREPLACE)
        }) {
            Ok(()) => {
                // Its path has nothing to remove any more.
                let _ = self.directory.keep();
                let parent = target.parent().unwrap_or(Path::new("/"));
                File::open(parent)
                    .and_then(|parent| parent.sync_all())
                    .map_err(failed)
            }
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failed(error.into())),
        }
    }
}

/// Removes a tree and its record: first out of the way, then away.
pub(super) fn remove_layer(layers: &Path, tree: &Path, record: &Path) -> Result<(), LayerError> {
    let failed = |path: &Path, source| LayerError::Directory {
        path: path.to_owned(),
        source,
    };
    match fs::remove_file(record) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(record, error)),
        _ => {}
    }
    let staging = Staging::new(layers)?;
    let away = staging.directory.path().join("layer");
    match fs::rename(tree, &away) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(tree, error)),
        Ok(()) => fs::remove_dir_all(&away).map_err(|error| failed(&away, error)),
    }
}

/// Removes every directory whose writer is gone.
pub(super) fn sweep(layers: &Path) -> Result<usize, LayerError> {
    let failed = |source| LayerError::Directory {
        path: layers.to_owned(),
        source,
    };
    let mut removed = 0;
    for entry in fs::read_dir(layers).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(entry.path()) else {
            continue;
        };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
            removed += 1;
        }
    }
    Ok(removed)
}
