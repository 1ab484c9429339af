//! An authority that signs for one domain, and the certificates it makes.
//!
//! Its key is kept in the home, so that whoever trusts it once is done. What
//! it signs is made when it is needed and kept nowhere. The authority says of
//! itself that it signs for nothing but its domain: whoever steals its key can
//! pose as no one else.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atoll_store::{StateWrite, write_once};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::TlsError;

/// Directory below the home.
const DIRECTORY: &str = "tls";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long an authority lasts.
const AUTHORITY_LIFE: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// How long a certificate lasts: less than any client minds.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// When the next one is made.
pub(super) const RENEW_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// An authority for one domain.
pub struct Authority {
    domain: String,
    path: PathBuf,
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    /// Without its key.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Authority")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority of `home` for `domain`, which is a checked name. Made
    /// when there is none.
    ///
    /// # Errors
    /// When it cannot be read or made, or others can read it.
    pub fn open(home: &Path, domain: &str) -> Result<Self, TlsError> {
        let directory = home.join(DIRECTORY);
        let path = directory.join(format!("{domain}.pem"));
        let file = |source| TlsError::File {
            path: path.clone(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(file)?;
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let fresh = made(domain).map_err(|source| TlsError::Make {
                    domain: domain.to_owned(),
                    source,
                })?;
                write_once(StateWrite::Authority, &path, fresh.as_bytes()).map_err(file)?
            }
            other => other.map_err(file)?,
        };
        let mode = fs::metadata(&path).map_err(file)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TlsError::Exposed { path, mode });
        }
        Self::parse(domain, path, &text)
    }

    /// The domains that `home` has authorities for.
    ///
    /// # Errors
    /// When the home cannot be read.
    pub fn domains(home: &Path) -> Result<Vec<String>, TlsError> {
        let directory = home.join(DIRECTORY);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|source| TlsError::File {
                path: directory,
                source,
            })?,
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut domains: Vec<String> = names
            .filter_map(|name| Some(name.to_str()?.strip_suffix(".pem")?.to_owned()))
            .collect();
        domains.sort_unstable();
        Ok(domains)
    }

    fn parse(domain: &str, path: PathBuf, text: &[u8]) -> Result<Self, TlsError> {
        let content = |expected| {
            let path = path.clone();
            move || TlsError::Content { path, expected }
        };
        let certificate =
            CertificateDer::from_pem_slice(text).map_err(|_| content("certificate")())?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(text)
            .ok()
            .and_then(|key| KeyPair::try_from(&key).ok())
            .ok_or_else(content("private key"))?;
        // Whoever is to trust it gets this part of the file.
        let end = "-----END CERTIFICATE-----\n";
        let pem = std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.split_inclusive(end).next())
            .filter(|pem| !pem.contains("PRIVATE"))
            .ok_or_else(content("certificate, followed by its key,"))?
            .to_owned();
        Ok(Self {
            domain: domain.to_owned(),
            issuer: Issuer::new(parameters(domain), key),
            path,
            certificate,
            pem,
        })
    }

    /// Its certificate, for whoever is to trust it.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The domain it signs for.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// A fresh certificate for the domain and all names below it.
    pub(super) fn issue(&self) -> Result<CertifiedKey, TlsError> {
        let failed = |source| TlsError::Make {
            domain: self.domain.clone(),
            source,
        };
        let key = KeyPair::generate().map_err(failed)?;
        let names = [self.domain.clone(), format!("*.{}", self.domain)];
        let mut wanted = CertificateParams::new(names).map_err(failed)?;
        wanted
            .distinguished_name
            .push(DnType::CommonName, self.domain.as_str());
        wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        wanted.use_authority_key_identifier_extension = true;
        (wanted.not_before, wanted.not_after) = lasting(LIFE);
        let made = wanted.signed_by(&key, &self.issuer).map_err(failed)?;
        let chain = vec![made.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(TlsError::Protocol)
    }
}

/// A new authority: its certificate, then its key.
fn made(domain: &str) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = parameters(domain).self_signed(&key)?;
    Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
}

/// What is said about an authority, the same every time.
fn parameters(domain: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::CommonName, format!("Atoll authority for {domain}"));
    parameters.distinguished_name = name;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(domain.to_owned())],
        excluded_subtrees: Vec::new(),
    });
    (parameters.not_before, parameters.not_after) = lasting(AUTHORITY_LIFE);
    parameters
}

/// From yesterday on, for clients whose clock is behind.
fn lasting<T: From<SystemTime>>(life: Duration) -> (T, T) {
    let now = SystemTime::now();
    ((now - DAY).into(), (now + life).into())
}
