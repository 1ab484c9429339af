//! Pages in browsers may call a guest from anywhere: what opens it is a token
//! in a header, which no page of others has, or (contexts of code) the id of a
//! sandbox, which no page of others knows. Cookies count for nothing here.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};

use crate::body::{AnswerBody, whole};

/// What a page may read of an answer besides its content.
const EXPOSED: &str = "content-disposition, content-encoding, content-length, content-range, \
    content-type, etag, last-modified";
/// How long a browser need not ask again, in seconds.
const MAX_AGE: &str = "7200";
/// Longest list of headers that is agreed to.
const LIST_BYTES_MAX: usize = 4096;

/// The answer to a browser that asks whether a page may call.
pub(super) fn preflight<B>(request: &Request<B>) -> Option<Response<AnswerBody>> {
    let asked = request.headers();
    let method = asked.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    if request.method() != Method::OPTIONS || !asked.contains_key(header::ORIGIN) {
        return None;
    }
    let mut response = Response::new(whole(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &HeaderValue| headers.insert(name, value.clone());
    set(header::ACCESS_CONTROL_ALLOW_ORIGIN, &ANY);
    set(header::ACCESS_CONTROL_ALLOW_METHODS, method);
    set(
        header::ACCESS_CONTROL_MAX_AGE,
        &HeaderValue::from_static(MAX_AGE),
    );
    if let Some(list) = requested(asked) {
        set(header::ACCESS_CONTROL_ALLOW_HEADERS, list);
    }
    headers.insert(
        header::VARY,
        HeaderValue::from_static(
            "origin, access-control-request-method, access-control-request-headers",
        ),
    );
    Some(response)
}

static ANY: HeaderValue = HeaderValue::from_static("*");

fn requested(asked: &HeaderMap) -> Option<&HeaderValue> {
    let list = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS)?;
    (list.len() <= LIST_BYTES_MAX).then_some(list)
}

/// An answer that pages may read.
pub(super) fn readable(mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY.clone());
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(EXPOSED),
    );
    response
}
