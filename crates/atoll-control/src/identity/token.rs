//! Tokens of sandboxes ("envd access tokens").
//!
//! A token names its key and proves with a MAC that this host made it for one
//! sandbox and that key: `key id · MAC(sandbox id, key id)`, in hexadecimal
//! digits. It is the same however often it is computed, so it survives pauses
//! and restarts and is stored nowhere. Whether sandbox and key still live is
//! asked of [`Access`](super::Access).

use std::fmt;

use atoll_engine::SandboxId;
use atoll_store::db::KeyId;

use super::secret::HomeSecret;

/// Digits of the id of the key, and of the MAC.
const KEY_DIGITS: usize = 32;
const MAC_DIGITS: usize = 64;

/// A token in the clear.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvdToken(String);

impl EnvdToken {
    /// The token itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EnvdToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("EnvdToken(…)")
    }
}

/// Makes tokens and knows its own.
#[derive(Clone)]
pub struct TokenMint([u8; 32]);

impl fmt::Debug for TokenMint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TokenMint(…)")
    }
}

impl TokenMint {
    pub(super) fn new(secret: &HomeSecret) -> Self {
        Self(secret.derive("atoll 2026-11-16 tokens of sandboxes"))
    }

    /// The token of `sandbox` for the holder of `key`.
    pub(super) fn token(&self, sandbox: &SandboxId, key: KeyId) -> EnvdToken {
        let mac = self.mac(sandbox, key).to_hex();
        EnvdToken(format!("{}{mac}", hex_of(key)))
    }

    /// The key that `text` was made for, if it is a token of `sandbox`.
    pub(super) fn key_of(&self, sandbox: &SandboxId, text: &str) -> Option<KeyId> {
        if text.len() != KEY_DIGITS + MAC_DIGITS || !text.is_ascii() {
            return None;
        }
        let (key, mac) = text.split_at(KEY_DIGITS);
        let key = key_from_hex(key)?;
        let mac = blake3::Hash::from_hex(mac).ok()?;
        // `Hash` compares in constant time. A second form of the same token
        // (capital letters) is none.
        (self.mac(sandbox, key) == mac && text.bytes().all(|byte| !byte.is_ascii_uppercase()))
            .then_some(key)
    }

    fn mac(&self, sandbox: &SandboxId, key: KeyId) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        // The id of a key has a fixed length, so nothing can move between the two.
        hasher.update(key.as_bytes());
        hasher.update(sandbox.as_str().as_bytes());
        hasher.finalize()
    }
}

fn hex_of(key: KeyId) -> String {
    key.to_string().replace('-', "")
}

fn key_from_hex(digits: &str) -> Option<KeyId> {
    let bytes = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
    Some(KeyId::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mint() -> (tempfile::TempDir, TokenMint) {
        let home = tempfile::tempdir().unwrap();
        let secret = HomeSecret::open(home.path()).unwrap();
        (home, TokenMint::new(&secret))
    }

    #[test]
    fn a_token_is_of_one_sandbox_and_one_key() {
        let (_home, mint) = mint();
        let (sandbox, other) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        let (key, another) = (KeyId::random(), KeyId::random());
        let token = mint.token(&sandbox, key);
        assert_eq!(token, mint.token(&sandbox, key));
        assert_eq!(mint.key_of(&sandbox, token.reveal()), Some(key));
        assert_eq!(mint.key_of(&other, token.reveal()), None);
        let forged = format!("{}{}", hex_of(another), &token.reveal()[KEY_DIGITS..]);
        assert_eq!(mint.key_of(&sandbox, &forged), None);
        let (_other_home, elsewhere) = self::mint();
        assert_eq!(elsewhere.key_of(&sandbox, token.reveal()), None);
    }

    #[test]
    fn no_other_text_is_the_token() {
        let (_home, mint) = mint();
        let sandbox = SandboxId::random().unwrap();
        let token = mint.token(&sandbox, KeyId::random());
        let text = token.reveal();
        for index in 0..text.len() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[index] = if bytes[index] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(mint.key_of(&sandbox, &changed), None, "{index}");
        }
        for other in [
            String::new(),
            text[1..].to_owned(),
            format!("{text}0"),
            text.to_uppercase(),
            "+".repeat(text.len()),
            "ü".repeat(text.len() / 2),
        ] {
            assert_eq!(mint.key_of(&sandbox, &other), None, "{other}");
        }
        assert_eq!(format!("{token:?}{mint:?}"), "EnvdToken(…)TokenMint(…)");
    }
}
