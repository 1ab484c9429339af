//! State on disk, whole or absent and never half; locks and sockets beside it.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, flock};

use serde::Serialize;

use super::{HostObject, creates};

/// Writes `value` as JSON to `path` in one step, readable by root alone.
pub(crate) fn write_state(
    object: HostObject,
    path: &Path,
    value: &impl Serialize,
) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    creates(object, || {
        let fresh = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(&text)?;
        drop(file);
        fs::rename(&fresh, path)
    })
}

/// Gives a finished file its final name in one step.
pub(crate) fn commit(object: HostObject, fresh: &Path, path: &Path) -> io::Result<()> {
    creates(object, || fs::rename(fresh, path))
}

/// A socket at `path` that only root can reach.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    // From its first moment: who connects before a change of its mode stays connected.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = creates(HostObject::ControlSocket, || UnixListener::bind(path));
    rustix::process::umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Makes `path` and its parents; only the last one gets `mode` if it is new.
pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Removes a file; one that is not there is removed already.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_file(path))
}

/// Removes a directory and all in it; one that is not there is removed already.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(path))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A lock on a file, held until dropped or until this process ends.
pub(crate) struct FileLock {
    _file: File,
}

/// Longest wait for a lock. Nobody holds one for more than a moment.
const LOCK_BOUND: Duration = Duration::from_secs(30);
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Waits for the lock at `path`.
pub(crate) fn lock(path: &Path) -> io::Result<FileLock> {
    let start = Instant::now();
    loop {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        if start.elapsed() > LOCK_BOUND {
            let what = format!(
                "`{}` is locked by another process for more than {} s",
                path.display(),
                LOCK_BOUND.as_secs()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Takes the lock at `path`, unless somebody has it.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<FileLock>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    // Whoever can open a file can lock it, and then nobody else does anything.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(FileLock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may open a lock can hold it.
    #[test]
    fn a_lock_is_roots_alone_also_one_that_was_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let held = try_lock(&path).unwrap();
        assert!(held.is_some() && try_lock(&path).unwrap().is_none());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
