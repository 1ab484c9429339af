//! How the other side knows that a request is ours, and not a repetition: the
//! scheme of Standard Webhooks, for which there are libraries.
//!
//! The signature is `v1,` and the base64 of HMAC-SHA256 over
//! `{webhook-id}.{webhook-timestamp}.{body}`. Who checks it, refuses old
//! timestamps and remembers ids cannot be told the same thing twice.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The value of `webhook-signature`.
pub(super) fn sign(secret: &[u8], id: &str, timestamp_s: i64, body: &str) -> String {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return String::new();
    };
    mac.update(format!("{id}.{timestamp_s}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_others_compute() {
        // Checked with `openssl dgst -sha256 -mac hmac`.
        let signed = sign(b"0123456789abcdef", "evt_7", 1_800_000_000, r#"{"id":7}"#);
        assert_eq!(signed, EXPECTED);
        for other in [
            sign(b"0123456789abcdeF", "evt_7", 1_800_000_000, r#"{"id":7}"#),
            sign(b"0123456789abcdef", "evt_8", 1_800_000_000, r#"{"id":7}"#),
            sign(b"0123456789abcdef", "evt_7", 1_800_000_001, r#"{"id":7}"#),
            sign(b"0123456789abcdef", "evt_7", 1_800_000_000, r#"{"id":8}"#),
        ] {
            assert_ne!(other, EXPECTED);
        }
    }

    const EXPECTED: &str = "v1,q25xTrKB5n5VfjrpZI9Fbo3XC5XdAUMHiwXkzHZnMQ0=";
}
