//! Content names: `sha256:` and 64 lower-case hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "sha256:";
const HEX_LEN: usize = 64;

/// The SHA-256 of some bytes, and the only name they are stored under.
///
/// Only text of the exact shape parses, so a digest that came from outside
/// can be made part of a path or object name without a further thought.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// The text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest (expected `sha256:` and {HEX_LEN} digits of 0-9 and a-f)")]
pub struct InvalidDigest(String);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0
    }

    /// A name fit for a file: `sha256-<hex>`.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("sha256-{}", self.0)
    }

    /// The digest behind a name made by [`Digest::file_name`].
    #[must_use]
    pub fn from_file_name(name: &str) -> Option<Self> {
        Self::from_hex(name.strip_prefix("sha256-")?)
    }

    fn from_hex(hex: &str) -> Option<Self> {
        let valid = hex.len() == HEX_LEN
            && hex
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        valid.then(|| Self(hex.to_owned()))
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix(PREFIX)
            .and_then(Self::from_hex)
            .ok_or_else(|| InvalidDigest(text.chars().take(100).collect()))
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{PREFIX}{}", self.0)
    }
}

/// Computes a [`Digest`] piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// A hasher that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes taken in.
    #[must_use]
    pub fn finish(self) -> Digest {
        let mut hex = String::with_capacity(HEX_LEN);
        for byte in self.0.finalize() {
            for nibble in [byte >> 4, byte & 15] {
                hex.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        Digest(hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn known_value_and_round_trip() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse(), Ok(digest.clone()));
        assert_eq!(
            Digest::from_file_name(&digest.file_name()),
            Some(digest.clone())
        );
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
    }

    #[test]
    fn refuses_everything_else() {
        let upper = EMPTY.to_uppercase();
        let path = format!("sha256:../../{}", "a".repeat(58));
        let long = format!("{EMPTY}0");
        for text in [
            "",
            "sha256:",
            "sha256:..",
            "md5:00",
            &EMPTY[7..],
            &upper,
            &path,
            &long,
        ] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
            assert!(serde_json::from_str::<Digest>(&format!("\"{text}\"")).is_err());
        }
    }
}
