//! Bodies, queries and paths of requests, bounded.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::super::moment;
use super::problem::{ErrorCode, Problem};

/// Longest JSON: the longest code, with every character escaped once.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a body may take.
const BODY_BOUND: Duration = Duration::from_secs(30);
/// Entries of a page, at most and when nothing is said.
const LIMIT_MAX: usize = 100;
/// Longest path of a file.
const PATH_LEN_MAX: usize = 4096;

/// A body: an object in JSON.
pub(in super::super) struct Body<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let reading = to_bytes(request.into_body(), BODY_BYTES_MAX);
        let bytes = match tokio::time::timeout(BODY_BOUND, reading).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(_)) => {
                let message =
                    format!("the body is longer than {BODY_BYTES_MAX} bytes, or was cut off");
                return Err(Problem::new(ErrorCode::PayloadTooLarge, message));
            }
            Err(_) => {
                let message = "the body of the request did not arrive in time";
                return Err(Problem::new(ErrorCode::RequestTimeout, message));
            }
        };
        // A list could be read as the fields of an object in their order.
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'{') {
            return Err(Problem::invalid("the body is no JSON object"));
        }
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Self).map_err(|error| {
            let shown: String = error.to_string().chars().take(300).collect();
            Problem::invalid(format!("the body is no valid JSON for this route: {shown}"))
        })
    }
}

/// Pairs of a query, each name once.
#[derive(Debug, Default)]
pub(in super::super) struct Params(BTreeMap<String, String>);

impl Params {
    fn parse(text: &str) -> Result<Self, Problem> {
        let mut pairs = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            let name = name.into_owned();
            if pairs.contains_key(&name) {
                let shown: String = name.chars().take(64).collect();
                return Err(Problem::invalid(format!("'{shown}' is in the query twice")));
            }
            pairs.insert(name, value.into_owned());
        }
        Ok(Self(pairs))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(super) fn value<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let parse = |text: &String| text.parse().map_err(|_| wrong(name, text));
        self.0.get(name).map(parse).transpose()
    }

    /// A moment in RFC 3339.
    pub(super) fn moment(&self, name: &str) -> Result<Option<i64>, Problem> {
        let parse = |text: &String| moment::parse(text).ok_or_else(|| wrong(name, text));
        self.0.get(name).map(parse).transpose()
    }

    /// How many entries a page has.
    pub(super) fn limit(&self) -> Result<usize, Problem> {
        let limit = self.value("limit")?.unwrap_or(LIMIT_MAX);
        if (1..=LIMIT_MAX).contains(&limit) {
            Ok(limit)
        } else {
            Err(wrong("limit", &limit.to_string()))
        }
    }

    /// Where a page begins: a moment and an id.
    pub(super) fn cursor(&self) -> Result<Option<(i64, String)>, Problem> {
        let Some(text) = self.text("cursor") else {
            return Ok(None);
        };
        let parsed = text.split_once('.').and_then(|(at_ms, id)| {
            let is_id = (1..=64).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            Some((at_ms.parse().ok()?, is_id.then(|| id.to_owned())?))
        });
        parsed.map(Some).ok_or_else(|| wrong("cursor", text))
    }

    /// The path of a file, which must be there.
    pub(super) fn path(&self) -> Result<&str, Problem> {
        let path = self.text("path");
        let path = path.ok_or_else(|| Problem::invalid("the query has no 'path'"))?;
        file_path(path)
    }
}

/// A path that a guest can be asked for.
pub(super) fn file_path(path: &str) -> Result<&str, Problem> {
    let is_path = (1..=PATH_LEN_MAX).contains(&path.len()) && !path.contains('\0');
    if is_path {
        Ok(path)
    } else {
        Err(Problem::invalid(format!(
            "'path' has 1 to {PATH_LEN_MAX} bytes, and no NUL"
        )))
    }
}

/// Where the next page begins, as text.
pub(super) fn cursor_text(place: &(i64, String)) -> String {
    format!("{}.{}", place.0, place.1)
}

pub(super) fn wrong(name: &str, value: &str) -> Problem {
    let shown: String = value.chars().take(100).collect();
    Problem::invalid(format!("'{shown}' cannot be the value of '{name}'"))
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

/// What a path names: one thing.
pub(in super::super) struct Named(pub(super) String);

/// What a path names: a thing, and something of it.
pub(in super::super) struct NamedTwice(pub(super) String, pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|_| Problem::not_found("resource"))?;
        Ok(Self(name))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for NamedTwice {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((first, second)) = path.map_err(|_| Problem::not_found("resource"))?;
        Ok(Self(first, second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_once_and_within_bounds() {
        let params = Params::parse("limit=5&a=x+y&path=%2Fa&cursor=12.ab-1").unwrap();
        assert_eq!(params.limit().unwrap(), 5);
        assert_eq!(params.text("a"), Some("x y"));
        assert_eq!(params.path().unwrap(), "/a");
        assert_eq!(params.cursor().unwrap(), Some((12, "ab-1".to_owned())));
        assert_eq!(cursor_text(&(12, "ab-1".to_owned())), "12.ab-1");
        assert!(Params::parse("a=1&a=2").is_err());
        for wrong in ["limit=0", "limit=101", "limit=x", "limit="] {
            assert!(Params::parse(wrong).unwrap().limit().is_err(), "{wrong}");
        }
        for wrong in ["cursor=a.b", "cursor=1", "cursor=1.", "cursor=1.%27"] {
            assert!(Params::parse(wrong).unwrap().cursor().is_err(), "{wrong}");
        }
        for wrong in ["", "path=", "path=a%00b"] {
            assert!(Params::parse(wrong).unwrap().path().is_err(), "{wrong}");
        }
    }
}
