//! What is encrypted at rest: the token between host and guest, and the
//! environment variables of a sandbox, which hold other people's keys. They
//! have to be kept because a sandbox that is started again from its disk needs
//! them again.
//!
//! XChaCha20-Poly1305 under a key derived from the secret of the home, with a
//! random nonce. What it belongs to is authenticated with it, so that a sealed
//! text cannot be moved from one row to another.

use std::collections::BTreeMap;
use std::fmt;

use atoll_protocol::InitRequest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

use super::secret::HomeSecret;

/// First characters of everything sealed, for the day there is another way.
const VERSION: &str = "v1.";

/// Bytes of the nonce, which stands before the ciphertext.
const NONCE_LEN: usize = 24;

/// Why something was not sealed or not opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It was changed, belongs to something else, or was sealed with another secret.
    #[error("a sealed text cannot be opened: it was changed, or sealed with another secret")]
    Broken,
    /// No randomness.
    #[error("the kernel gives no random bytes")]
    Random(#[source] std::io::Error),
}

/// Encrypts and decrypts for one home.
#[derive(Clone)]
pub struct Sealer(XChaCha20Poly1305);

impl fmt::Debug for Sealer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Sealer(…)")
    }
}

/// What a sandbox's row keeps sealed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSecrets {
    /// Opens the guest to the host.
    pub guest_token: String,
    /// Environment variables that its creator set.
    pub environment: BTreeMap<String, String>,
    /// Opens user ports of a sandbox that is closed to the public.
    pub traffic_token: Option<String>,
    /// What its guest is told when it boots again, but for its token.
    #[serde(default)]
    pub init: InitRequest,
}

impl fmt::Debug for SandboxSecrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SandboxSecrets(…)")
    }
}

impl Sealer {
    pub(super) fn new(secret: &HomeSecret) -> Self {
        let key = secret.derive("atoll 2026-11-16 sealing of secrets at rest");
        Self(XChaCha20Poly1305::new(&key.into()))
    }

    /// Encrypts `bytes`, which belong to `owner`.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn seal(&self, owner: &str, bytes: &[u8]) -> Result<String, SealError> {
        let mut nonce = [0_u8; NONCE_LEN];
        getrandom::fill(&mut nonce)
            .map_err(|error| SealError::Random(std::io::Error::other(error)))?;
        let payload = Payload {
            msg: bytes,
            aad: owner.as_bytes(),
        };
        let sealed = self
            .0
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| SealError::Broken)?;
        let whole = [nonce.as_slice(), &sealed].concat();
        Ok(format!("{VERSION}{}", STANDARD_NO_PAD.encode(whole)))
    }

    /// Decrypts what [`seal`](Self::seal) made for the same `owner`.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn open(&self, owner: &str, sealed: &str) -> Result<Vec<u8>, SealError> {
        let whole = sealed
            .strip_prefix(VERSION)
            .and_then(|text| STANDARD_NO_PAD.decode(text).ok())
            .ok_or(SealError::Broken)?;
        let (nonce, sealed) = whole
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(SealError::Broken)?;
        let payload = Payload {
            msg: sealed,
            aad: owner.as_bytes(),
        };
        self.0
            .decrypt(&XNonce::from(*nonce), payload)
            .map_err(|_| SealError::Broken)
    }

    /// Encrypts the secrets of the sandbox with the id `sandbox`.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn seal_sandbox(
        &self,
        sandbox: &str,
        secrets: &SandboxSecrets,
    ) -> Result<String, SealError> {
        // Maps of texts always have a form in JSON.
        let bytes = serde_json::to_vec(secrets).map_err(|_| SealError::Broken)?;
        self.seal(sandbox, &bytes)
    }

    /// Decrypts the secrets of the sandbox with the id `sandbox`.
    ///
    /// # Errors
    /// When they were changed, or belong to another sandbox or home.
    pub fn open_sandbox(&self, sandbox: &str, sealed: &str) -> Result<SandboxSecrets, SealError> {
        serde_json::from_slice(&self.open(sandbox, sealed)?).map_err(|_| SealError::Broken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealer() -> Sealer {
        let home = tempfile::tempdir().unwrap();
        Sealer::new(&HomeSecret::open(home.path()).unwrap())
    }

    fn secrets() -> SandboxSecrets {
        SandboxSecrets {
            guest_token: "guest".to_owned(),
            environment: [("API_KEY".to_owned(), "hunter2".to_owned())].into(),
            traffic_token: None,
            init: InitRequest::default(),
        }
    }

    #[test]
    fn secrets_of_a_sandbox_open_for_it_alone_and_are_not_readable() {
        let sealer = sealer();
        let sealed = sealer.seal_sandbox("i1", &secrets()).unwrap();
        assert_eq!(sealer.open_sandbox("i1", &sealed).unwrap(), secrets());
        assert!(sealer.open_sandbox("i2", &sealed).is_err());
        assert!(self::sealer().open_sandbox("i1", &sealed).is_err());
        assert!(!sealed.contains("hunter2") && !format!("{:?}", secrets()).contains("hunter2"));
        let again = sealer.seal_sandbox("i1", &secrets()).unwrap();
        assert_ne!(sealed, again, "a nonce is used once");
    }

    #[test]
    fn anything_else_does_not_open() {
        let sealer = sealer();
        for text in [
            "",
            "v1.",
            "v1.AAAA",
            "v2.AAAA",
            "v1.!",
            &format!("v1.{}", "A".repeat(60)),
        ] {
            assert!(
                matches!(sealer.open("i1", text), Err(SealError::Broken)),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_what_is_changed_does_not(
            owner in ".{0,30}",
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            place in any::<prop::sample::Index>(),
            flip in 1_u8..,
        ) {
            let sealer = sealer();
            let sealed = sealer.seal(&owner, &bytes).unwrap();
            prop_assert_eq!(sealer.open(&owner, &sealed).unwrap(), bytes);
            let mut whole = STANDARD_NO_PAD.decode(&sealed[VERSION.len()..]).unwrap();
            let place = place.index(whole.len());
            whole[place] ^= flip;
            let changed = format!("{VERSION}{}", STANDARD_NO_PAD.encode(whole));
            prop_assert!(sealer.open(&owner, &changed).is_err());
        }
    }
}
