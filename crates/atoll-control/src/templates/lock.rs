//! File locks that end with their process, however that one ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How often a taken lock is tried again. `flock` cannot be waited for
/// without a thread that nobody can call back.
const RETRY: Duration = Duration::from_millis(200);

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// The lock for one writer; `None` when somebody has it.
    pub(crate) fn try_exclusive(path: &Path) -> io::Result<Option<Self>> {
        Self::attempt(path, FlockOperation::NonBlockingLockExclusive)
    }

    /// The lock for one writer, waited for; `waiting` is called once if it is taken.
    pub(crate) async fn exclusive(path: &Path, waiting: impl FnOnce()) -> io::Result<Self> {
        if let Some(lock) = Self::try_exclusive(path)? {
            return Ok(lock);
        }
        waiting();
        loop {
            tokio::time::sleep(RETRY).await;
            if let Some(lock) = Self::try_exclusive(path)? {
                return Ok(lock);
            }
        }
    }

    /// A lock that others may share, waited for.
    pub(crate) async fn shared(path: &Path) -> io::Result<Self> {
        loop {
            if let Some(lock) = Self::attempt(path, FlockOperation::NonBlockingLockShared)? {
                return Ok(lock);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn attempt(path: &Path, operation: FlockOperation) -> io::Result<Option<Self>> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        match flock(&file, operation) {
            // Whoever had it before removed it: there is another one of this name by now, or none.
            Ok(()) if file.metadata()?.nlink() == 0 => Ok(None),
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
