//! Certificates are believed by whoever trusts their authority, for its names
//! and no others.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    RootCertStore, client::WebPkiServerVerifier, client::danger::ServerCertVerifier as _,
};

use super::*;

/// Whether a client that trusts `authority` takes what is shown for `name`.
fn is_believed(authority: &str, shown: &CertifiedKey, name: &str) -> bool {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap())
        .unwrap();
    let verifier = WebPkiServerVerifier::builder_with_provider(
        Arc::new(roots),
        Arc::new(ring::default_provider()),
    )
    .build()
    .unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let (own, others) = shown.cert.split_first().unwrap();
    verifier
        .verify_server_cert(own, others, &name, &[], UnixTime::now())
        .is_ok()
}

fn shown(certificates: &Certificates) -> Arc<CertifiedKey> {
    Arc::clone(&certificates.shown.now.read().unwrap().0)
}

#[test]
fn a_made_certificate_is_believed_for_its_domain_alone() {
    let home = tempfile::tempdir().unwrap();
    let certificates = Certificates::made(home.path(), "my.zone").unwrap();
    let authority = Authority::open(home.path(), "my.zone").unwrap();
    let first = shown(&certificates);
    for name in [
        "my.zone",
        "api.my.zone",
        "3000-i0123456789abcdefghij.my.zone",
    ] {
        assert!(is_believed(authority.pem(), &first, name), "{name}");
    }
    for name in ["zone", "a.b.my.zone", "my.zone.example", "example.org"] {
        assert!(!is_believed(authority.pem(), &first, name), "{name}");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::open(elsewhere.path(), "my.zone").unwrap();
    assert!(!is_believed(other.pem(), &first, "my.zone"));
    // The next start shows another one, by the same authority.
    let again = Certificates::made(home.path(), "my.zone").unwrap();
    assert_ne!(shown(&again).cert[0], first.cert[0]);
    assert!(is_believed(authority.pem(), &shown(&again), "my.zone"));
    assert_eq!(Authority::domains(home.path()).unwrap(), ["my.zone"]);
}

#[test]
fn an_authority_signs_for_nobody_else() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::open(home.path(), "my.zone").unwrap();
    // As somebody would who stole its key.
    let stolen = fs::read_to_string(home.path().join("tls/my.zone.pem")).unwrap();
    fs::write(home.path().join("tls/bank.example.pem"), stolen).unwrap();
    fs::set_permissions(
        home.path().join("tls/bank.example.pem"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let forger = Authority::open(home.path(), "bank.example").unwrap();
    let forged = forger.issue().unwrap();
    assert!(!is_believed(authority.pem(), &forged, "bank.example"));
}

#[test]
fn the_key_is_for_its_owner_and_is_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::open(home.path(), "my.zone").unwrap();
    let path = home.path().join("tls/my.zone.pem");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
        0o600
    );
    assert!(!authority.pem().contains("PRIVATE"), "{}", authority.pem());
    assert!(authority.pem().contains("BEGIN CERTIFICATE"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = Authority::open(home.path(), "my.zone").unwrap_err();
    assert!(
        matches!(refused, TlsError::Exposed { mode: 0o644, .. }),
        "{refused}"
    );
    fs::write(&path, "nothing").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = Authority::open(home.path(), "my.zone").unwrap_err();
    assert!(matches!(refused, TlsError::Content { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "nothing", "it is kept");
}

#[test]
fn given_files_are_read_again_when_they_change() {
    let home = tempfile::tempdir().unwrap();
    let (chain, key) = (home.path().join("chain.pem"), home.path().join("key.pem"));
    let write = |name: &str| {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        fs::write(&chain, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        made.cert.pem()
    };
    assert!(matches!(
        Certificates::from_files(&chain, &key),
        Err(TlsError::File { .. })
    ));
    let first = write("first.example");
    let certificates = Certificates::from_files(&chain, &key).unwrap();
    assert!(is_believed(&first, &shown(&certificates), "first.example"));
    certificates.refresh().unwrap();
    let second = write("the-second.example");
    certificates.refresh().unwrap();
    assert!(is_believed(
        &second,
        &shown(&certificates),
        "the-second.example"
    ));
    // A key of another certificate changes nothing.
    let other = rcgen::generate_simple_self_signed(["x.example".to_owned()]).unwrap();
    fs::write(&key, format!("{}\n", other.signing_key.serialize_pem())).unwrap();
    assert!(matches!(
        certificates.refresh(),
        Err(TlsError::Mismatch { .. })
    ));
    assert!(is_believed(
        &second,
        &shown(&certificates),
        "the-second.example"
    ));
    fs::write(&key, "no key").unwrap();
    assert!(matches!(
        certificates.refresh(),
        Err(TlsError::Content { .. })
    ));
}
