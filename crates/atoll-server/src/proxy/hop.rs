//! Headers that belong to one connection, and go no further.

use http::{HeaderMap, HeaderName, header};

/// Those that always do.
static HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What `Connection` must not take away: what a request is about, and what we
/// decide by.
static KEPT: [HeaderName; 6] = [
    header::HOST,
    header::AUTHORIZATION,
    header::COOKIE,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
];

/// Removes them.
pub(super) fn remove(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| !KEPT.contains(name))
        .collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_belongs_to_a_connection_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Secret , upgrade, host, cookie, ;, "),
            ("connection", "te"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("x-secret", "a"),
            ("x-other", "b"),
            ("host", "here"),
            ("cookie", "c"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        remove(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["cookie", "host", "x-other"]);
    }
}
