//! A page that reads the document and lets a person call every route. It
//! loads nothing from anywhere else, and may not.

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(in super::super) async fn page() -> Response {
    asset("text/html; charset=utf-8", include_str!("docs/page.html"))
}

pub(in super::super) async fn script() -> Response {
    asset(
        "text/javascript; charset=utf-8",
        include_str!("docs/page.js"),
    )
}

pub(in super::super) async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("docs/page.css"))
}

fn asset(content_type: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
