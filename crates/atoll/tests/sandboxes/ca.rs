//! `atoll ca`: certificates on standard output, advice beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::harness::TestHome;

#[test]
fn an_authority_is_made_once_and_shown_without_its_key() {
    let home = TestHome::empty();
    let none = home.run(["ca"]);
    assert_eq!(none.code, 125);
    assert!(
        none.stderr.contains("hint: `atoll ca --domain my.zone`"),
        "{}",
        none.stderr
    );
    let made = home.run(["ca", "--domain", "My.Zone"]).succeeded();
    assert!(made.starts_with("-----BEGIN CERTIFICATE-----"), "{made}");
    assert!(!made.contains("PRIVATE"), "{made}");
    let again = home.run(["ca"]);
    assert_eq!(again.stdout, made);
    for word in [
        "update-ca-certificates",
        "NODE_EXTRA_CA_CERTS",
        "SSL_CERT_FILE",
    ] {
        assert!(again.stderr.contains(word), "{}", again.stderr);
    }
    let json = home.run(["ca", "--json"]).json();
    assert_eq!(
        (&json["domain"], &json["certificate"]),
        (&"my.zone".into(), &made.into())
    );
}

#[test]
fn what_cannot_be_is_said() {
    let home = TestHome::empty();
    for domain in ["", "*.zone", "a/../b", "127.0.0.1", "a:80"] {
        let refused = home.run(["ca", "--domain", domain]);
        assert_eq!(refused.code, 125, "{domain}");
        assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);
        assert!(!home.path().join("tls").exists(), "{domain}");
    }
    home.run(["ca", "--domain", "one.zone"]).succeeded();
    home.run(["ca", "--domain", "two.zone"]).succeeded();
    let which = home.run(["ca"]);
    assert!(
        which.stderr.contains("one.zone, two.zone"),
        "{}",
        which.stderr
    );
    let key = home.path().join("tls/one.zone.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let exposed = home.run(["ca", "--domain", "one.zone"]);
    assert_eq!(exposed.code, 125);
    assert!(
        exposed.stderr.contains("hint: `chmod 600` it"),
        "{}",
        exposed.stderr
    );
}
