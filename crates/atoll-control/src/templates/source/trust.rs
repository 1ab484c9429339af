//! Certificates the operator added to the host, for machines behind a proxy.
//!
//! The image has the authorities of its own distribution; what the host
//! trusts beyond its distribution is added to them. Certificates only: no
//! private key is ever read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use atoll_store::Digest;

/// Bundles of the distributions, the first that exists is taken.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// What the host's distribution ships.
const SHIPPED: &str = "/usr/share/ca-certificates";

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The bundle of the host; `None` when it has none.
pub(crate) fn bundle() -> Option<PathBuf> {
    BUNDLES
        .iter()
        .map(PathBuf::from)
        .find(|path| path.is_file())
}

/// Certificates of the host's bundle that its distribution does not ship, as PEM.
pub(crate) fn added_certificates() -> Vec<String> {
    let shipped: BTreeSet<String> = files_below(Path::new(SHIPPED))
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|text| certificates(&text))
        .collect();
    let bundle = bundle()
        .and_then(|path| fs::read_to_string(path).ok())
        .unwrap_or_default();
    let mut added: Vec<_> = certificates(&bundle)
        .into_iter()
        .filter(|one| !shipped.contains(one))
        .collect();
    added.sort();
    added.dedup();
    added
}

/// A hash of certificates, part of what decides what a build makes.
pub(crate) fn digest(certificates: &[String]) -> Digest {
    Digest::of(certificates.concat().as_bytes())
}

/// The certificates in a text, each normalised so that equal ones are equal.
fn certificates(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(BEGIN) {
        let after = &rest[start + BEGIN.len()..];
        let Some(end) = after.find(END) else { break };
        let body: Vec<_> = after[..end]
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        found.push(format!("{BEGIN}\n{}\n{END}\n", body.join("\n")));
        rest = &after[end + END.len()..];
    }
    found
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_found_and_keys_are_not() {
        let text = format!(
            "# one\n{BEGIN}\r\nAAA\r\nBBB\r\n{END}\n-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n{BEGIN}\ncut"
        );
        assert_eq!(certificates(&text), [format!("{BEGIN}\nAAA\nBBB\n{END}\n")]);
    }
}
