//! What can be wrong with certificates.

use std::io;
use std::path::PathBuf;

/// Why there is no certificate to show.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("cannot use `{}`", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("`{}` holds no {expected} in PEM form", path.display())]
    Content {
        /// Which one.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// Others can read a key.
    #[error("others can read `{}` (mode {mode:o}), and whoever has read it can pose as this server", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The key is another's.
    #[error("the key in `{}` does not belong to the certificate in `{}`", key.display(), chain.display())]
    Mismatch {
        /// The file with the certificate.
        chain: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate for `{domain}`")]
    Make {
        /// For whom.
        domain: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// TLS itself cannot be set up.
    #[error("TLS cannot be set up")]
    Protocol(#[source] rustls::Error),
}

impl TlsError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Content { .. } => Some(
                "expected text with `-----BEGIN …-----`; for an authority made by Atoll, put the file back from a backup, or remove it and trust the next one",
            ),
            Self::Exposed { .. } => {
                Some("`chmod 600` it; if others may have read it, remove it and trust the next one")
            }
            Self::Mismatch { .. } => Some(
                "give the key that the certificate was made for, and the chain with the server's own certificate first",
            ),
            Self::File { .. } | Self::Make { .. } | Self::Protocol(_) => None,
        }
    }
}
