//! What a URL of `/files` says.
//!
//! It is decoded once, before anybody decides whether the request may pass,
//! and the handlers get the very same values: what is signed is what is used.

use axum::extract::Query;
use axum::http::Uri;
use serde::Deserialize;

use super::FileError;

/// Query of both methods. A parameter given twice is an error: nobody could
/// say which of the two was signed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct FileQuery {
    /// The file, or nothing when the body names its files.
    pub(crate) path: Option<String>,
    /// In whose name.
    pub(crate) username: Option<String>,
    /// Instead of the token.
    pub(crate) signature: Option<String>,
    /// Until when, in seconds since 1970, as text: only the check reads it.
    pub(crate) signature_expiration: Option<String>,
}

impl FileQuery {
    /// Decodes the query: `+` is a space and `%XX` a byte.
    pub(crate) fn from_uri(uri: &Uri) -> Result<Self, FileError> {
        let Query(query) = Query::<Self>::try_from_uri(uri)
            .map_err(|error| FileError::Request(error.body_text()))?;
        // The decoder puts U+FFFD where a name is not UTF-8, which would be
        // the name of another file.
        let is_spelled_out = uri
            .query()
            .is_some_and(|query| query.to_ascii_uppercase().contains("%EF%BF%BD"));
        if query.values().any(|value| value.contains('\u{fffd}')) && !is_spelled_out {
            return Err(FileError::Request("the query is not UTF-8".to_owned()));
        }
        Ok(query)
    }

    fn values(&self) -> impl Iterator<Item = &String> {
        [&self.path, &self.username].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<FileQuery, String> {
        let uri = format!("/files?{query}").parse().unwrap();
        FileQuery::from_uri(&uri).map_err(|error| error.to_string())
    }

    #[test]
    fn a_space_is_a_plus_or_a_percent() {
        let expected = FileQuery {
            path: Some("a b+c/ü&".to_owned()),
            username: Some(String::new()),
            ..FileQuery::default()
        };
        for query in [
            "path=a+b%2Bc/%C3%BC%26&username=",
            "username=&path=a%20b%2bc%2F%c3%bc%26&other=x&other=y",
        ] {
            assert_eq!(parse(query), Ok(expected.clone()), "{query}");
        }
        assert_eq!(parse(""), Ok(FileQuery::default()));
    }

    #[test]
    fn what_could_be_read_two_ways_is_refused() {
        for query in [
            "path=a&path=b",
            "path=a&%70ath=b",
            "username=a&username=a",
            "signature=a&signature=b",
            "signature_expiration=1&signature_expiration=2",
        ] {
            assert!(
                parse(query).is_err_and(|error| error.contains("duplicate field")),
                "{query}"
            );
        }
    }

    #[test]
    fn what_is_not_text_is_refused() {
        assert_eq!(
            parse("path=a%FFb"),
            Err("the query is not UTF-8".to_owned())
        );
        assert_eq!(
            parse("path=a%EF%BF%BDb").unwrap().path.as_deref(),
            Some("a\u{fffd}b")
        );
    }
}
