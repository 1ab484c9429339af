//! `$ATOLL_HOME/secret`: 256 random bits from which the keys for hashes,
//! tokens and encryption are derived. Made once; whoever has it and the
//! database can forge tokens, so nobody but its owner may read it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use atoll_store::{StateWrite, write_once};
use rustix::fs::{Mode, OFlags};

/// The file, in the home.
const FILE: &str = "secret";

/// Bytes of the secret; the file has them in hexadecimal digits.
const LEN: usize = 32;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 256;

/// Why the secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read or made.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others can read it.
    #[error("`{}` can be read or written by others (mode {mode:04o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It belongs to somebody else.
    #[error("`{}` belongs to uid {owner} and not to the user of this process", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// It holds something else.
    #[error("`{}` does not hold a secret: expected 64 hexadecimal digits", path.display())]
    Content {
        /// The file.
        path: PathBuf,
    },
}

impl SecretError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::File { .. } => None,
            Self::Exposed { .. } => Some(
                "`chmod 600` it; if others may have read it, remove it and make new keys: those that exist will not work any more",
            ),
            Self::Foreign { .. } => Some("run as its owner, or give the file to this user"),
            Self::Content { .. } => Some(
                "put it back from a backup; if there is none, remove it and make new keys: those that exist will not work any more",
            ),
        }
    }
}

/// The secret of a home.
#[derive(Clone)]
pub struct HomeSecret([u8; LEN]);

impl std::fmt::Debug for HomeSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("HomeSecret(…)")
    }
}

impl HomeSecret {
    /// Reads the secret of `home`, made when it is first asked for.
    ///
    /// # Errors
    /// When it cannot be read or made, others can read it, or it is none.
    pub fn open(home: &Path) -> Result<Self, SecretError> {
        let path = home.join(FILE);
        let failed = |source| SecretError::File {
            path: path.clone(),
            source,
        };
        let mut fresh = [0_u8; LEN];
        getrandom::fill(&mut fresh).map_err(|error| failed(io::Error::other(error)))?;
        let text = format!("{}\n", blake3::Hash::from_bytes(fresh).to_hex());
        write_once(StateWrite::HomeSecret, &path, text.as_bytes()).map_err(failed)?;
        Self::read(&path)
    }

    /// Reads the file, having looked at who else can.
    fn read(path: &Path) -> Result<Self, SecretError> {
        let owned = || path.to_owned();
        let failed = |source| SecretError::File {
            path: owned(),
            source,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map(File::from)
            .map_err(|error| failed(error.into()))?;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Exposed {
                path: owned(),
                mode,
            });
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(SecretError::Foreign {
                path: owned(),
                owner: metadata.uid(),
            });
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(failed)?;
        blake3::Hash::from_hex(text.trim_ascii_end())
            .map(|bytes| Self(*bytes.as_bytes()))
            .map_err(|_| SecretError::Content { path: owned() })
    }

    /// A key for one purpose; nothing about it tells of the others.
    pub(super) fn derive(&self, purpose: &'static str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }

    /// What a database can keep to recognise this secret, and learn nothing of it.
    pub(super) fn mark(&self) -> String {
        let mark = self.derive("atoll 2026-11-16 mark of the secret in a database");
        blake3::Hash::from_bytes(mark).to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_secret_is_made_once_for_its_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let first = HomeSecret::open(home.path()).unwrap();
        let again = HomeSecret::open(home.path()).unwrap();
        assert_eq!(first.0, again.0);
        let mode = fs::metadata(home.path().join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(HomeSecret::open(other.path()).unwrap().0, first.0);
        assert_eq!(format!("{first:?}"), "HomeSecret(…)");
    }

    #[test]
    fn purposes_have_different_keys() {
        let secret = HomeSecret([1; LEN]);
        assert_ne!(secret.derive("a"), secret.derive("b"));
        assert_ne!(secret.derive("a"), HomeSecret([2; LEN]).derive("a"));
        assert_ne!(secret.mark(), HomeSecret([2; LEN]).mark());
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        HomeSecret::open(home.path()).unwrap();
        let path = home.path().join(FILE);
        for mode in [0o604, 0o640, 0o620, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = HomeSecret::open(home.path()).unwrap_err();
            assert!(
                matches!(refused, SecretError::Exposed { mode: found, .. } if found == mode),
                "{refused}"
            );
            assert!(refused.hint().is_some());
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        HomeSecret::open(home.path()).unwrap();
    }

    #[test]
    fn a_file_that_is_no_secret_is_refused_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        for content in ["", "secret", &"z".repeat(64), &"a".repeat(65)] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let refused = HomeSecret::open(home.path()).unwrap_err();
            assert!(matches!(refused, SecretError::Content { .. }), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        HomeSecret::open(other.path()).unwrap();
        symlink(other.path().join(FILE), home.path().join(FILE)).unwrap();
        let refused = HomeSecret::open(home.path()).unwrap_err();
        assert!(matches!(refused, SecretError::File { .. }), "{refused}");
    }
}
