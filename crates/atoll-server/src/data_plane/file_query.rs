//! What a URL of `/files` says, and whose signature is on it.
//!
//! It is decoded as the guest does it: what is signed is what is used.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_protocol::signature::{self, Operation, SignatureError, SignedUrl};
use axum::extract::Query;
use http::{Method, Uri};
use serde::Deserialize;

/// Longest path and user that are looked at; anybody can make us hash them,
/// once for every token there is.
const PATH_BYTES_MAX: usize = 4096;
const USER_BYTES_MAX: usize = 256;

/// The query of a signed URL. A parameter given twice is an error: nobody
/// could say which of the two was signed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Given {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

/// A URL with a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileQuery {
    path: String,
    user: String,
    operation: Operation,
    expiration: Option<i64>,
    signature: String,
}

impl FileQuery {
    /// Reads a URL.
    ///
    /// # Errors
    /// When it has no signature, or none that could be right.
    pub(super) fn of(method: &Method, uri: &Uri) -> Result<Self, SignatureError> {
        let operation = match *method {
            Method::GET | Method::HEAD => Operation::Read,
            Method::POST => Operation::Write,
            _ => return Err(SignatureError::Missing),
        };
        let Query(given) =
            Query::<Given>::try_from_uri(uri).map_err(|_| SignatureError::Invalid)?;
        let signature = given.signature.ok_or(SignatureError::Missing)?;
        // Before anything is hashed for every token there is.
        if !signature::has_form(&signature) {
            return Err(SignatureError::Invalid);
        }
        let expiration = given
            .signature_expiration
            .map(|text| text.parse().map_err(|_| SignatureError::Invalid))
            .transpose()?;
        let (path, user) = (
            given.path.unwrap_or_default(),
            given.username.unwrap_or_default(),
        );
        if path.len() > PATH_BYTES_MAX || user.len() > USER_BYTES_MAX {
            return Err(SignatureError::Invalid);
        }
        Ok(Self {
            path,
            user,
            operation,
            expiration,
            signature,
        })
    }

    /// What `search` finds with the question whether a token signed this URL.
    /// Only then is looked whether it is too old.
    ///
    /// # Errors
    /// When no token did, or too long ago.
    pub(super) fn signer<T>(
        &self,
        search: impl FnOnce(&dyn Fn(&str) -> bool) -> Option<T>,
    ) -> Result<T, SignatureError> {
        let url = SignedUrl {
            path: &self.path,
            operation: self.operation,
            user: &self.user,
            expiration: self.expiration,
        };
        let is_signer = |token: &str| {
            let at_any_time = i64::MIN;
            url.verify(token, Some(&self.signature), at_any_time)
                .is_ok()
        };
        let found = search(&is_signer).ok_or(SignatureError::Invalid)?;
        match self.expiration {
            Some(expiration) if expiration < now() => Err(SignatureError::Expired),
            Some(_) | None => Ok(found),
        }
    }
}

/// Seconds since 1970. A clock that cannot say lets nothing be in time.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|passed| i64::try_from(passed.as_secs()).ok())
        .unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    const TOKEN: &str = "tok123";

    fn check(method: &Method, target: &str) -> Result<(), SignatureError> {
        let uri = target.parse().unwrap();
        let query = FileQuery::of(method, &uri)?;
        query.signer(|is_signer| is_signer(TOKEN).then_some(()))
    }

    #[test]
    fn clients_signatures_open() {
        // Made by released clients for this token.
        let read = "/files?path=/home/user/a.txt&signature=v1_byj2OB%2FvujgbES%2F1KAKCaR27E%2B9eOrB6PzeTnIL8L6M";
        assert_eq!(check(&Method::GET, read), Ok(()));
        assert_eq!(check(&Method::HEAD, read), Ok(()));
        assert_eq!(check(&Method::POST, read), Err(SignatureError::Invalid));
        assert_eq!(check(&Method::PUT, read), Err(SignatureError::Missing));
        let write = "/files?path=a.txt&username=root&signature_expiration=1800000000&signature=v1_PBhbIJd7%2BwpG6UYY8%2B%2BmBm3J6DCbN%2BHU65YmGxGySuI";
        let expected = if now() > 1_800_000_000 {
            Err(SignatureError::Expired)
        } else {
            Ok(())
        };
        assert_eq!(check(&Method::POST, write), expected);
    }

    #[test]
    fn nothing_about_a_signed_url_can_be_changed() {
        let sign = |expiration| {
            let url = SignedUrl {
                path: "a b",
                operation: Operation::Read,
                user: "root",
                expiration,
            };
            url.sign(TOKEN).replace('+', "%2B").replace('/', "%2F")
        };
        let (forever, past) = (sign(None), sign(Some(1)));
        for (query, expected) in [
            (
                format!("path=a+b&username=root&signature={forever}"),
                Ok(()),
            ),
            (
                format!("signature={forever}&username=root&path=a%20b"),
                Ok(()),
            ),
            (
                format!("path=a+b&username=root&signature={past}&signature_expiration=1"),
                Err(SignatureError::Expired),
            ),
            ("path=a+b".to_owned(), Err(SignatureError::Missing)),
        ] {
            assert_eq!(check(&Method::GET, &format!("/files?{query}")), expected);
        }
        for query in [
            format!("path=a+b&signature={forever}"),
            format!("path=a+b&username=user&signature={forever}"),
            format!("path=a+b&username=root&username=root&signature={forever}"),
            format!("path=/etc/shadow&path=a+b&username=root&signature={forever}"),
            format!("path=a+b/../x&username=root&signature={forever}"),
            format!("path=a+b&username=root&signature={forever}&signature_expiration=9999999999"),
            format!("path=a+b&username=root&signature={past}&signature_expiration=9999999999"),
            format!("path=a+b&username=root&signature={past}&signature_expiration=+1"),
            format!("path=a+b&username=root&signature={past}"),
            format!("path={}&signature={forever}", "a".repeat(5000)),
            "path=a+b&username=root&signature=".to_owned(),
        ] {
            let checked = check(&Method::GET, &format!("/files?{query}"));
            assert_eq!(checked, Err(SignatureError::Invalid), "{query}");
        }
    }
}
