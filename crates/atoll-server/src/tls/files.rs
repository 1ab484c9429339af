//! A certificate and its key in files that somebody else renews.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::TlsError;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// When both files were written last, and how long they are.
type Version = [(Option<SystemTime>, u64); 2];

#[derive(Debug)]
pub(super) struct Files {
    chain: PathBuf,
    key: PathBuf,
    read: Mutex<Option<Version>>,
}

impl Files {
    pub(super) fn new(chain: PathBuf, key: PathBuf) -> Self {
        Self {
            chain,
            key,
            read: Mutex::new(None),
        }
    }

    /// Reads both.
    ///
    /// # Errors
    /// When one cannot be read, or they do not belong together.
    pub(super) fn read(&self) -> Result<CertifiedKey, TlsError> {
        // First: a change while we read is seen the next time.
        let version = self.version()?;
        let chain = text_of(&self.chain)?;
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|chain: &Vec<_>| !chain.is_empty())
            .ok_or_else(|| TlsError::Content {
                path: self.chain.clone(),
                expected: "certificate",
            })?;
        let key = text_of(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| TlsError::Content {
            path: self.key.clone(),
            expected: "private key",
        })?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let certified = certified.map_err(|_| TlsError::Mismatch {
            chain: self.chain.clone(),
            key: self.key.clone(),
        })?;
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(version);
        Ok(certified)
    }

    /// Reads them when they are not what was read before.
    pub(super) fn read_if_changed(&self) -> Result<Option<CertifiedKey>, TlsError> {
        let version = Some(self.version()?);
        if *self.read.lock().unwrap_or_else(PoisonError::into_inner) == version {
            return Ok(None);
        }
        self.read().map(Some)
    }

    fn version(&self) -> Result<Version, TlsError> {
        let of = |path: &PathBuf| {
            let metadata = fs::metadata(path).map_err(|source| TlsError::File {
                path: path.clone(),
                source,
            })?;
            Ok::<_, TlsError>((metadata.modified().ok(), metadata.len()))
        };
        Ok([of(&self.chain)?, of(&self.key)?])
    }
}

fn text_of(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut text = Vec::new();
        let file = fs::File::open(path)?;
        io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut text)?;
        Ok(text)
    };
    read().map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}
