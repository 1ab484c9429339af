//! Which headers of a request reach a service, and which the server writes.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use hyper::body::Body;

use super::{TRAFFIC_TOKEN, Visit, hop};
use crate::routing::ROUTING_HEADERS;

/// What only the server may say: who asks, and how.
const SERVERS_OWN: [&str; 7] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// What becomes the address of a proxy in programs that take headers for
/// environment variables.
const PROXY: &str = "proxy";

/// Stands for the port in a host that the sandbox wants services to see.
const PORT_PLACEHOLDER: &str = "${PORT}";

/// The headers that a service gets. `is_token` tells tokens of the sandbox,
/// which are none of the service's business, from its own.
///
/// # Errors
/// When the sandbox wants a host that cannot be one; in words that follow the
/// name of the service.
pub(super) fn passed(
    head: &Parts,
    visit: &Visit<'_>,
    is_token: impl Fn(&str) -> bool,
    body: &impl Body,
) -> Result<HeaderMap, &'static str> {
    let mut headers = head.headers.clone();
    let had_length = headers.remove(header::CONTENT_LENGTH).is_some();
    hop::remove(&mut headers);
    // We answer it ourselves, when the service wants the body.
    headers.remove(header::EXPECT);
    let strange: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_not_the_clients(name.as_str()))
        .cloned()
        .collect();
    for name in &strange {
        headers.remove(name);
    }
    let holds_token = headers
        .get_all(atoll_protocol::ACCESS_TOKEN_HEADER)
        .iter()
        .any(|value| value.to_str().is_ok_and(&is_token));
    if holds_token {
        headers.remove(atoll_protocol::ACCESS_TOKEN_HEADER);
    }
    join_cookies(&mut headers);

    let nothing_follows = body.is_end_stream();
    let has_a_meaning = matches!(head.method, Method::POST | Method::PUT | Method::PATCH);
    if nothing_follows && (had_length || has_a_meaning) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }

    headers.remove(header::HOST);
    let host = match &visit.sandbox.ingress.mask_host {
        Some(mask) => {
            let host = mask.replace(PORT_PLACEHOLDER, &visit.port.to_string());
            let host = HeaderValue::from_str(&host)
                .map_err(|_| "cannot be asked: maskRequestHost of the sandbox is not a host")?;
            Some(host)
        }
        None => visit.authority.clone(),
    };
    if let Some(host) = host {
        headers.insert(header::HOST, host);
    }
    write_origin(&mut headers, visit);
    Ok(headers)
}

/// Whether a header is not the client's to send. Some programs read `_` as `-`.
fn is_not_the_clients(name: &str) -> bool {
    let name = name.replace('_', "-");
    let name = name.as_str();
    SERVERS_OWN.contains(&name)
        || ROUTING_HEADERS.contains(&name)
        || name == TRAFFIC_TOKEN
        || name == PROXY
}

/// HTTP/2 may cut a cookie header into pieces, which HTTP/1.1 must not.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() > 1 {
        // Of parts that were values, with what may be in one between them.
        if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
            headers.insert(header::COOKIE, joined);
        }
    }
}

/// Who asks, and how.
fn write_origin(headers: &mut HeaderMap, visit: &Visit<'_>) {
    let client = visit.client;
    let peer = client.peer.ip().to_canonical().to_string();
    // An address is always a value.
    if let Ok(peer) = HeaderValue::from_str(&peer) {
        headers.insert(HeaderName::from_static("x-forwarded-for"), peer);
    }
    let is_tls = client.scheme == http::uri::Scheme::HTTPS;
    headers.insert(
        HeaderName::from_static("x-forwarded-proto"),
        HeaderValue::from_static(if is_tls { "https" } else { "http" }),
    );
    if let Some(authority) = &visit.authority {
        headers.insert(
            HeaderName::from_static("x-forwarded-host"),
            authority.clone(),
        );
    }
}
