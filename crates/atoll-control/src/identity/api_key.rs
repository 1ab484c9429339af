//! API keys: `e2b_` and 40 hexadecimal digits, which every E2B client accepts.
//!
//! All of a key is random (160 bits), so a fast keyed hash is enough: there is
//! nothing to guess that a slow one would protect.

use std::fmt;

use serde::Serialize;

use super::secret::HomeSecret;

/// What every key begins with.
const PREFIX: &str = "e2b_";

/// Digits after it.
const DIGITS: usize = 40;

/// Digits at the end of a key that are shown to tell keys apart.
const SUFFIX: usize = 4;

/// A key in the clear. It is shown once, to who asked for it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl fmt::Debug for ApiKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ApiKey({})", self.mask())
    }
}

impl ApiKey {
    /// A fresh key from the kernel's random source.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub(super) fn random() -> Result<Self, std::io::Error> {
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        let digits = blake3::Hash::from_bytes(bytes).to_hex();
        Ok(Self(format!("{PREFIX}{}", &digits[..DIGITS])))
    }

    /// The key that `text` is, if it has the form of one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == DIGITS && digits.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }

    /// The key itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What may be shown of it.
    #[must_use]
    pub fn mask(&self) -> KeyMask {
        KeyMask::new(&self.0[self.0.len() - SUFFIX..])
    }
}

/// What may be shown of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyMask {
    /// What every key begins with.
    pub prefix: &'static str,
    /// Characters after it.
    pub value_length: usize,
    /// The last of them.
    pub suffix: String,
}

impl KeyMask {
    pub(super) fn new(suffix: &str) -> Self {
        Self {
            prefix: PREFIX,
            value_length: DIGITS,
            suffix: suffix.to_owned(),
        }
    }
}

impl fmt::Display for KeyMask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}…{}", self.prefix, self.suffix)
    }
}

/// Turns keys into what is stored of them.
#[derive(Clone)]
pub(super) struct KeyHasher([u8; 32]);

impl KeyHasher {
    pub(super) fn new(secret: &HomeSecret) -> Self {
        Self(secret.derive("atoll 2026-11-16 hash of API keys"))
    }

    /// Without the secret nobody can tell whether a guessed key has this hash.
    pub(super) fn hash(&self, key: &ApiKey) -> blake3::Hash {
        blake3::keyed_hash(&self.0, key.0.as_bytes())
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("KeyHasher(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_form_that_old_clients_check() {
        let key = ApiKey::random().unwrap();
        let text = key.reveal();
        assert_eq!(text.len(), 44);
        assert_eq!(ApiKey::parse(text), Some(key.clone()));
        assert_ne!(ApiKey::random().unwrap(), key);
    }

    #[test]
    fn other_texts_are_no_keys() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        assert!(ApiKey::parse(&format!("e2b_{digits}")).is_some());
        for text in [
            String::new(),
            "e2b_".to_owned(),
            digits.to_owned(),
            format!("E2B_{digits}"),
            format!("e2b_{}", digits.to_uppercase()),
            format!("e2b_{digits}0"),
            format!("e2b_{}", &digits[1..]),
            format!("e2b_{}ü", &digits[2..]),
            format!(" e2b_{digits}"),
            format!("e2b_{digits}\n"),
        ] {
            assert_eq!(ApiKey::parse(&text), None, "{text:?}");
        }
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let key = ApiKey(format!("e2b_{}beef", "0".repeat(36)));
        assert_eq!(format!("{key:?}"), "ApiKey(e2b_…beef)");
        assert_eq!(key.mask().to_string(), "e2b_…beef");
    }
}
