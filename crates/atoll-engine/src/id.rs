//! Sandbox ids: `i` and twenty characters of `[a-z0-9]`, the shape every E2B
//! client accepts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const RANDOM_LEN: usize = 20;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// The name of one sandbox, unique for all time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// The text is not a sandbox id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a sandbox id (expected `i` and {RANDOM_LEN} characters of a-z and 0-9)")]
pub struct InvalidSandboxId(String);

impl SandboxId {
    /// A fresh id from the kernel's random source.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn random() -> Result<Self, std::io::Error> {
        let mut text = String::with_capacity(RANDOM_LEN + 1);
        text.push('i');
        let mut byte = [0_u8; 1];
        while text.len() <= RANDOM_LEN {
            getrandom::fill(&mut byte).map_err(std::io::Error::other)?;
            // 252 = 7 * 36: larger values would favour the first letters.
            if byte[0] < 252 {
                text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
            }
        }
        Ok(Self(text))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = text.len() == RANDOM_LEN + 1
            && text.starts_with('i')
            && text.bytes().all(|byte| ALPHABET.contains(&byte));
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSandboxId(text.to_owned()))
        }
    }
}

impl TryFrom<String> for SandboxId {
    type Error = InvalidSandboxId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_differ_and_parse_back() {
        let first = SandboxId::random().unwrap();
        let second = SandboxId::random().unwrap();
        assert_ne!(first, second);
        assert_eq!(first.as_str().parse(), Ok(first));
    }

    #[test]
    fn refuses_paths_and_other_shapes() {
        for text in [
            "",
            "i",
            "../../etc/passwd",
            "iABCDEFGHIJKLMNOPQRST",
            "jaaaaaaaaaaaaaaaaaaaa",
            "iaaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}
