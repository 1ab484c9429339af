//! A home has one server.
//!
//! The lock belongs to an open file, so the kernel gives it back however its
//! holder ends. The file stays; what it says is only for people.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The lock, in the home.
const FILE: &str = "server.lock";

/// Longest text that is read from the file: a pid.
const PID_LEN_MAX: u64 = 32;

/// Why the home cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Another server has it.
    #[error("another server runs on `{}`{}", home.display(), pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Taken {
        /// The home.
        home: PathBuf,
        /// Its server, if it says so.
        pid: Option<u32>,
    },
    /// The lock cannot be tried.
    #[error("cannot lock `{}`", path.display())]
    Lock {
        /// The lock.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OwnerError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Taken { .. } => {
                Some("stop that server first, or set ATOLL_HOME to another directory")
            }
            Self::Lock { .. } => None,
        }
    }
}

/// The right to be the server of a home, until dropped.
#[derive(Debug)]
pub struct HomeOwner {
    _lock: File,
}

impl HomeOwner {
    /// Takes the home, or says who has it.
    ///
    /// # Errors
    /// When another process has it, or the lock cannot be tried.
    pub fn take(home: &Path) -> Result<Self, OwnerError> {
        let path = home.join(FILE);
        match attempt(&path) {
            Ok(Attempt::Locked(lock)) => Ok(Self { _lock: lock }),
            Ok(Attempt::TakenBy(pid)) => Err(OwnerError::Taken {
                home: home.to_owned(),
                pid,
            }),
            Err(source) => Err(OwnerError::Lock { path, source }),
        }
    }
}

enum Attempt {
    Locked(File),
    TakenBy(Option<u32>),
}

fn attempt(path: &Path) -> io::Result<Attempt> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            (&file).take(PID_LEN_MAX).read_to_string(&mut text)?;
            return Ok(Attempt::TakenBy(text.trim().parse().ok()));
        }
        Err(error) => return Err(error.into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Attempt::Locked(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_has_one_owner_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let owner = HomeOwner::take(home.path()).unwrap();
        let refused = HomeOwner::take(home.path()).unwrap_err();
        assert!(
            matches!(&refused, OwnerError::Taken { pid: Some(pid), .. } if *pid == std::process::id()),
            "{refused:?}"
        );
        assert!(refused.hint().is_some());
        drop(owner);
        HomeOwner::take(home.path()).unwrap();
    }

    #[test]
    fn a_home_that_is_not_there_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let refused = HomeOwner::take(&home.path().join("no")).unwrap_err();
        assert!(matches!(refused, OwnerError::Lock { .. }), "{refused:?}");
    }
}
