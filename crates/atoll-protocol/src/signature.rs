//! Signatures of `/files`: a client that holds the token of a sandbox makes
//! a URL that reads or writes one path for whoever has the URL.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

/// What a signed URL may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `GET`.
    Read,
    /// `POST`.
    Write,
}

impl Operation {
    /// As it is signed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// What a URL says about itself: its query, decoded and otherwise untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedUrl<'a> {
    /// `path`, or nothing for uploads that name their files in the body.
    pub path: &'a str,
    /// By the method of the request.
    pub operation: Operation,
    /// `username`, or nothing.
    pub user: &'a str,
    /// `signature_expiration`, in seconds since 1970.
    pub expiration: Option<i64>,
}

/// Why a signature opens nothing. The texts are those that clients match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is none.
    #[error("missing signature query parameter")]
    Missing,
    /// It is of something else or by somebody else.
    #[error("invalid signature")]
    Invalid,
    /// It was good once.
    #[error("signature is already expired")]
    Expired,
}

impl SignedUrl<'_> {
    /// The signature by the holder of `token`.
    #[must_use]
    pub fn sign(&self, token: &str) -> String {
        let Self {
            path,
            operation,
            user,
            expiration,
        } = self;
        let mut hash = Sha256::new();
        hash.update(format!("{path}:{}:{user}:{token}", operation.as_str()));
        if let Some(expiration) = expiration {
            hash.update(format!(":{expiration}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()))
    }

    /// Checks a presented signature at a time in seconds since 1970.
    ///
    /// # Errors
    /// When it is missing, not by the holder of `token`, or too old.
    pub fn verify(
        &self,
        token: &str,
        signature: Option<&str>,
        now: i64,
    ) -> Result<(), SignatureError> {
        let signature = signature.ok_or(SignatureError::Missing)?;
        if !equal_in_constant_time(self.sign(token).as_bytes(), signature.as_bytes()) {
            return Err(SignatureError::Invalid);
        }
        match self.expiration {
            Some(expiration) if expiration < now => Err(SignatureError::Expired),
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether a text could be a signature of anything at all.
#[must_use]
pub fn has_form(signature: &str) -> bool {
    let digest = signature
        .strip_prefix("v1_")
        .and_then(|text| STANDARD_NO_PAD.decode(text).ok());
    digest.is_some_and(|digest| digest.len() == DIGEST_BYTES)
}

/// What SHA-256 makes of anything.
const DIGEST_BYTES: usize = 32;

/// Compares secrets without telling by its duration where they differ.
#[must_use]
pub fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let difference = left
        .iter()
        .zip(right)
        .fold(0, |seen, (a, b)| seen | std::hint::black_box(a ^ b));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: SignedUrl<'_> = SignedUrl {
        path: "/home/user/a.txt",
        operation: Operation::Read,
        user: "",
        expiration: None,
    };
    const WRITE: SignedUrl<'_> = SignedUrl {
        path: "a.txt",
        operation: Operation::Write,
        user: "root",
        expiration: Some(1_800_000_000),
    };

    #[test]
    fn signatures_are_those_of_the_clients() {
        assert_eq!(
            READ.sign("tok123"),
            "v1_byj2OB/vujgbES/1KAKCaR27E+9eOrB6PzeTnIL8L6M"
        );
        assert_eq!(
            WRITE.sign("tok123"),
            "v1_PBhbIJd7+wpG6UYY8++mBm3J6DCbN+HU65YmGxGySuI"
        );
    }

    #[test]
    fn what_cannot_be_a_signature_is_told_by_its_form() {
        assert!(has_form(&READ.sign("tok123")));
        for text in [
            "",
            "v1_",
            "v1_AAAA",
            "v2_byj2OB/vujgbES/1KAKCaR27E+9eOrB6PzeTnIL8L6M",
        ] {
            assert!(!has_form(text), "{text}");
        }
        assert!(!has_form(&format!("{}A", READ.sign("tok123"))));
        assert!(!has_form(&format!("v1_{}", "A".repeat(100_000))));
    }

    #[test]
    fn a_signature_opens_what_it_signs_until_it_expires() {
        let signature = WRITE.sign("tok123");
        let verify = |url: SignedUrl<'_>, token, now| url.verify(token, Some(&signature), now);
        assert_eq!(verify(WRITE, "tok123", 1_800_000_000), Ok(()));
        assert_eq!(
            verify(WRITE, "tok123", 1_800_000_001),
            Err(SignatureError::Expired)
        );
        assert_eq!(verify(WRITE, "tok124", 0), Err(SignatureError::Invalid));
        for other in [
            SignedUrl { path: "b", ..WRITE },
            SignedUrl { user: "", ..WRITE },
            SignedUrl {
                operation: Operation::Read,
                ..WRITE
            },
            SignedUrl {
                expiration: Some(1_900_000_000),
                ..WRITE
            },
            SignedUrl {
                expiration: None,
                ..WRITE
            },
        ] {
            assert_eq!(verify(other, "tok123", 0), Err(SignatureError::Invalid));
        }
        assert_eq!(
            WRITE.verify("tok123", None, 0),
            Err(SignatureError::Missing)
        );
        assert_eq!(
            WRITE.verify("tok123", Some(""), 0),
            Err(SignatureError::Invalid)
        );
    }

    proptest::proptest! {
        #[test]
        fn no_other_url_has_the_same_signature(
            paths in ("[a:/]{0,6}", "[a:/]{0,6}"),
            users in ("[a-z]{0,3}", "[a-z]{0,3}"),
            writes in (proptest::bool::ANY, proptest::bool::ANY),
            expirations in (proptest::option::of(0..9_i64), proptest::option::of(0..9_i64)),
        ) {
            let url = |path, user, writes, expiration| SignedUrl {
                path,
                operation: if writes { Operation::Write } else { Operation::Read },
                user,
                expiration,
            };
            let one = url(paths.0.as_str(), users.0.as_str(), writes.0, expirations.0);
            let other = url(paths.1.as_str(), users.1.as_str(), writes.1, expirations.1);
            let signature = one.sign("0123456789abcdef");
            proptest::prop_assert_eq!(
                other.verify("0123456789abcdef", Some(&signature), 0).is_ok(),
                one == other
            );
        }
    }
}
