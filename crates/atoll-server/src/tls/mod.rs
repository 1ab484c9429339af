//! Certificates that the server shows: of files that are given, or made by an
//! authority of its own for one domain.
//!
//! | file | owns |
//! |---|---|
//! | `authority.rs` | `$ATOLL_HOME/tls/<domain>.pem`: the authority, and the certificates it makes |
//! | `files.rs` | certificate and key that somebody else renews |
//! | `error.rs` | what can be wrong with either |
//!
//! What is shown can change while connections are open: made certificates are
//! replaced long before they expire, and files are read again when they changed.

mod authority;
mod error;
mod files;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

pub use authority::Authority;
pub use error::TlsError;
use files::Files;

/// How often is looked whether there is something new to show.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// Protocols that are offered, the better one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What a server shows to clients.
pub struct Certificates {
    config: Arc<ServerConfig>,
    shown: Arc<Shown>,
    source: Source,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Certificates")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Source {
    Files(Files),
    Made(Box<Authority>),
}

impl Certificates {
    /// Of files in the form that everybody writes: a chain that starts with
    /// the server's own, and its key.
    ///
    /// # Errors
    /// When they cannot be read or do not belong together.
    pub fn from_files(
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let files = Files::new(chain.into(), key.into());
        let first = files.read()?;
        Self::new(first, Source::Files(files))
    }

    /// Made by the authority of `home` for `domain` and all names below it.
    /// The authority is made when there is none.
    ///
    /// # Errors
    /// When the authority cannot be read or made.
    pub fn made(home: &Path, domain: &str) -> Result<Self, TlsError> {
        let authority = Authority::open(home, domain)?;
        let first = authority.issue()?;
        Self::new(first, Source::Made(Box::new(authority)))
    }

    fn new(first: CertifiedKey, source: Source) -> Result<Self, TlsError> {
        let shown = Arc::new(Shown {
            now: RwLock::new((Arc::new(first), Instant::now())),
        });
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Protocol)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
        Ok(Self {
            config: Arc::new(config),
            shown,
            source,
        })
    }

    /// The settings of a server that shows them.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Replaces what is shown when it is time, for ever: a task of the server.
    pub(crate) async fn keep_fresh(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if let Err(error) = self.refresh() {
                tracing::warn!("the old certificate stays: {error}");
            }
        }
    }

    /// Replaces what is shown, if it is time.
    ///
    /// # Errors
    /// When there is nothing better; what was shown stays.
    pub fn refresh(&self) -> Result<(), TlsError> {
        let fresh = match &self.source {
            Source::Files(files) => files.read_if_changed()?,
            Source::Made(authority) => {
                let is_due = self.shown.age() > authority::RENEW_AFTER;
                is_due.then(|| authority.issue()).transpose()?
            }
        };
        if let Some(fresh) = fresh {
            self.shown.replace(fresh);
        }
        Ok(())
    }
}

/// The certificate of the moment.
#[derive(Debug)]
struct Shown {
    now: RwLock<(Arc<CertifiedKey>, Instant)>,
}

impl Shown {
    fn age(&self) -> Duration {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.1.elapsed()
    }

    fn replace(&self, fresh: CertifiedKey) {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        *now = (Arc::new(fresh), Instant::now());
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&now.0))
    }
}

#[cfg(test)]
mod tests;
