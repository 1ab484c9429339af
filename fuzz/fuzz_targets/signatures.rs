//! A signature opens what was signed, for its token, and nothing else.
#![no_main]

use arbitrary::Arbitrary;
use atoll_protocol::signature::{Operation, SignatureError, SignedUrl};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Url<'a> {
    path: &'a str,
    writes: bool,
    user: &'a str,
    expiration: Option<i64>,
}

impl Url<'_> {
    fn signed(&self) -> SignedUrl<'_> {
        SignedUrl {
            path: self.path,
            operation: if self.writes {
                Operation::Write
            } else {
                Operation::Read
            },
            user: self.user,
            expiration: self.expiration,
        }
    }
}

fuzz_target!(|input: (Url<'_>, Url<'_>, u64, &str, i64)| {
    let (one, other, token, forged, now) = input;
    let token = format!("{token:016x}");
    let signature = one.signed().sign(&token);
    let expired = one.expiration.is_some_and(|expiration| expiration < now);
    let expected = if expired {
        Err(SignatureError::Expired)
    } else {
        Ok(())
    };
    assert_eq!(one.signed().verify(&token, Some(&signature), now), expected);
    assert_eq!(
        one.signed().verify("another", Some(&signature), now),
        Err(SignatureError::Invalid)
    );
    if forged != signature {
        assert_eq!(
            one.signed().verify(&token, Some(forged), now),
            Err(SignatureError::Invalid)
        );
    }
    // Users have no colon in their names, or `/etc/passwd` could not hold
    // them; without one no two URLs have a signature in common.
    let plain = |url: &Url<'_>| !url.user.contains(':');
    if one.signed() != other.signed() && plain(&one) && plain(&other) {
        assert_eq!(
            other.signed().verify(&token, Some(&signature), i64::MIN),
            Err(SignatureError::Invalid)
        );
    }
});
