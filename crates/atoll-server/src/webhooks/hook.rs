//! One address, what it is told, and its secret.

use std::fmt;

use atoll_store::db::EventKind;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::uri::Scheme;
use sha2::{Digest as _, Sha256};

/// What a secret in base64 begins with.
const ENCODED: &str = "whsec_";
/// Bytes of a secret.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 1024;

/// Why something is no hook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The address. Its text is not repeated: it may hold a secret.
    #[error("a webhook's url must be `http://` or `https://`, a host, and no user")]
    Url,
    /// The secret.
    #[error(
        "a webhook's secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes; after `{ENCODED}` it is base64"
    )]
    Secret,
    /// What it wants to be told.
    #[error("there is no kind of event that is called `{0}`")]
    Kind(String),
}

/// One address, what it is told, and its secret.
#[derive(Clone)]
pub struct Hook {
    pub(super) url: Uri,
    pub(super) secret: Vec<u8>,
    pub(super) kinds: Vec<EventKind>,
}

impl fmt::Debug for Hook {
    /// Without the secret, and without what the address may hide.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hook")
            .field("at", &self.place())
            .field("kinds", &self.kinds)
            .finish_non_exhaustive()
    }
}

impl Hook {
    /// A hook at `url` that is told of `kinds`, or of everything if that names none.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn new(url: &str, secret: &str, kinds: &[String]) -> Result<Self, HookError> {
        let url: Uri = url.parse().map_err(|_| HookError::Url)?;
        let scheme = url.scheme();
        let is_http = scheme == Some(&Scheme::HTTP) || scheme == Some(&Scheme::HTTPS);
        let authority = url.authority().ok_or(HookError::Url)?;
        if !is_http || authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(HookError::Url);
        }
        let kind = |text: &String| {
            EventKind::try_from(text.clone()).map_err(|_| HookError::Kind(text.clone()))
        };
        Ok(Self {
            secret: parse_secret(secret)?,
            kinds: kinds.iter().map(kind).collect::<Result<_, _>>()?,
            url,
        })
    }

    /// Its name in the store. An address that is changed is another hook.
    #[must_use]
    pub fn id(&self) -> String {
        let digest = Sha256::digest(self.url.to_string().as_bytes());
        let bytes = digest.iter().take(16);
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    /// What may be said of its address.
    pub(super) fn place(&self) -> String {
        let scheme = self.url.scheme_str().unwrap_or_default();
        let authority = self.url.authority().map_or("", |it| it.as_str());
        format!("{scheme}://{authority}")
    }
}

fn parse_secret(text: &str) -> Result<Vec<u8>, HookError> {
    let text = text.trim_end_matches(['\r', '\n']);
    let bytes = match text.strip_prefix(ENCODED) {
        Some(encoded) => STANDARD.decode(encoded).map_err(|_| HookError::Secret)?,
        None => text.as_bytes().to_vec(),
    };
    if (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
        Ok(bytes)
    } else {
        Err(HookError::Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef";

    #[test]
    fn addresses_secrets_and_kinds_are_checked() {
        let hook = Hook::new("https://h:8443/path?q=1", SECRET, &["killed".to_owned()]).unwrap();
        assert_eq!(hook.place(), "https://h:8443");
        assert_eq!(hook.kinds, [EventKind::Killed]);
        for url in [
            "h/path",
            "ftp://h/",
            "http://user:password@h/",
            "http://",
            "/path",
            "",
        ] {
            let refused = Hook::new(url, SECRET, &[]).unwrap_err();
            assert_eq!(refused, HookError::Url, "{url}");
        }
        for secret in [
            "",
            "short",
            "whsec_c2hvcnQ=",
            "whsec_not base64 at all",
            &"x".repeat(1025),
        ] {
            let refused = Hook::new("http://h/", secret, &[]).unwrap_err();
            assert_eq!(refused, HookError::Secret);
            assert!(secret.is_empty() || !refused.to_string().contains(secret));
        }
        let refused = Hook::new("http://h/", SECRET, &["exploded".to_owned()]).unwrap_err();
        assert_eq!(refused, HookError::Kind("exploded".to_owned()));
    }

    #[test]
    fn nobody_reads_a_secret_from_a_debug_print() {
        let hook = Hook::new("http://h/token-in-path", SECRET, &[]).unwrap();
        let shown = format!("{hook:?}");
        assert!(!shown.contains("token"), "{shown}");
        assert!(!shown.contains("48") && !shown.contains(SECRET), "{shown}");
    }

    #[test]
    fn a_secret_is_its_text_or_what_base64_stands_for() {
        assert_eq!(
            parse_secret("0123456789abcdef\n").unwrap(),
            SECRET.as_bytes()
        );
        let encoded = format!("whsec_{}\r\n", STANDARD.encode(SECRET));
        assert_eq!(parse_secret(&encoded).unwrap(), SECRET.as_bytes());
    }
}
