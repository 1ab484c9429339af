//! What stands behind the `?` of a request.

use std::collections::BTreeMap;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::answer::ApiError;

/// Pairs of a query, each name once.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut pairs = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if let Some(_first) = pairs.insert(name.clone().into_owned(), value.into_owned()) {
                return Err(ApiError::bad_request(format!(
                    "'{}' is in the query more than once",
                    name.chars().take(64).collect::<String>()
                )));
            }
        }
        Ok(Self(pairs))
    }

    /// The value of `name`; an empty one is none.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// The value of `name` as something else.
    pub(super) fn value<T: FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name)
            .map(|text| text.parse().map_err(|_| invalid(name, text)))
            .transpose()
    }
}

/// A value that its name does not take.
pub(super) fn invalid(name: &str, value: &str) -> ApiError {
    let shown: String = value.chars().take(100).collect();
    ApiError::bad_request(format!("'{shown}' cannot be the value of '{name}'"))
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_there_once() {
        let query = Query::parse("a=1&b=&c=x+y%2Bz").unwrap();
        assert_eq!(query.value::<u8>("a").unwrap(), Some(1));
        assert_eq!(query.text("b"), None);
        assert_eq!(query.text("c"), Some("x y+z"));
        assert!(query.value::<u8>("c").is_err());
        assert!(Query::parse("a=1&a=1").is_err());
    }
}
