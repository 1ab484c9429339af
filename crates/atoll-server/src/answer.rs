//! What the server says in its own name on behalf of sandboxes: one place for
//! texts that clients match on.
//!
//! Programs get JSON; a person who followed a link gets a small page.

use atoll_control::running::Running;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use crate::body::{AnswerBody, whole};

/// What went wrong with a request for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It does not run here: never did, is paused, or is over.
    SandboxNotFound,
    /// Nobody listens on that port.
    PortClosed(u16),
    /// The port answers, but not with what was asked for.
    Service { port: u16, message: String },
    /// A request without the token that this sandbox asks of its visitors.
    TrafficToken(&'static str),
    /// More at once than one sandbox is given.
    TooMany { limit: usize },
}

/// Body of such an answer. Absent fields are not written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureBody<'a> {
    sandbox_id: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_limit: Option<usize>,
    code: u16,
}

impl Failure {
    fn status(&self) -> StatusCode {
        match self {
            Self::SandboxNotFound | Self::PortClosed(_) | Self::Service { .. } => {
                StatusCode::BAD_GATEWAY
            }
            Self::TrafficToken(_) => StatusCode::FORBIDDEN,
            Self::TooMany { .. } => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The first two are what released clients look for.
    fn message(&self) -> &str {
        match self {
            Self::SandboxNotFound => "The sandbox was not found",
            Self::PortClosed(_) => "The sandbox is running but port is not open",
            Self::Service { message, .. } => message,
            Self::TrafficToken(message) => message,
            Self::TooMany { .. } => "Too many connections to this sandbox at once",
        }
    }

    /// The answer to a request with these headers.
    pub(crate) fn answer(&self, sandbox_id: &str, asked: &HeaderMap) -> Response<AnswerBody> {
        let (status, message) = (self.status(), self.message());
        let port = match self {
            Self::PortClosed(port) | Self::Service { port, .. } => Some(*port),
            Self::SandboxNotFound | Self::TrafficToken(_) | Self::TooMany { .. } => None,
        };
        let connection_limit = match self {
            Self::TooMany { limit } => Some(*limit),
            _ => None,
        };
        if wants_a_page(asked) {
            return page(status, message, sandbox_id, port);
        }
        json(
            status,
            &FailureBody {
                sandbox_id,
                message,
                port,
                connection_limit,
                code: status.as_u16(),
            },
        )
    }
}

/// Whether a sandbox has ended, though nobody took it from the list yet.
pub(crate) async fn has_ended(sandbox: &Running) -> bool {
    // Its monitor measures it for as long as it is there.
    sandbox.live.stats().await.is_err()
}

/// `{"code", "message"}`, the body of every other error.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<AnswerBody> {
    #[derive(Serialize)]
    struct ErrorBody<'a> {
        code: u16,
        message: &'a str,
    }
    json(
        status,
        &ErrorBody {
            code: status.as_u16(),
            message,
        },
    )
}

/// A path that no client of a sandbox uses, or must not.
pub(crate) fn unknown_path(path: &str) -> Response<AnswerBody> {
    #[derive(Serialize)]
    struct UnknownPath<'a> {
        message: &'a str,
        path: &'a str,
        code: u16,
    }
    let message = "The path does not lead to anything that clients of a sandbox use";
    json(
        StatusCode::NOT_FOUND,
        &UnknownPath {
            message,
            path,
            code: 404,
        },
    )
}

/// A request that leads nowhere, in words.
pub(crate) fn text(status: StatusCode, message: String) -> Response<AnswerBody> {
    finish(status, "text/plain; charset=utf-8", message)
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<AnswerBody> {
    // Structs of texts and numbers can always be written.
    let body = serde_json::to_vec(body).unwrap_or_default();
    finish(status, "application/json", body)
}

fn finish(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<bytes::Bytes>,
) -> Response<AnswerBody> {
    let mut response = Response::new(whole(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a browser shows the answer to a person. Scripts in browsers, and
/// Node, say `cors`.
fn wants_a_page(asked: &HeaderMap) -> bool {
    let text = |name: &str| asked.get(name).and_then(|value| value.to_str().ok());
    match text("sec-fetch-mode") {
        Some(mode) => mode == "navigate",
        None => text("accept").is_some_and(|accepted| accepted.contains("text/html")),
    }
}

fn page(
    status: StatusCode,
    message: &str,
    sandbox_id: &str,
    port: Option<u16>,
) -> Response<AnswerBody> {
    let place = port.map_or_else(
        || format!("Sandbox <code>{}</code>", escaped(sandbox_id)),
        |port| format!("Sandbox <code>{}</code>, port {port}", escaped(sandbox_id)),
    );
    let body = format!(
        "<!doctype html><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{status}</title>\
         <style>body{{font:16px/1.5 system-ui;margin:15vh auto;max-width:32em;padding:0 1em}}</style>\
         <h1>{}</h1><p>{place}</p>",
        escaped(message)
    );
    let mut response = finish(status, "text/html; charset=utf-8", body);
    response.headers_mut().insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    response
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use http_body_util::BodyExt;

    use super::*;

    async fn body_of(response: Response<AnswerBody>) -> String {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    #[tokio::test]
    async fn bodies_are_those_that_clients_match() {
        for (failure, status, expected) in [
            (
                Failure::SandboxNotFound,
                502,
                r#"{"sandboxId":"i1","message":"The sandbox was not found","code":502}"#,
            ),
            (
                Failure::PortClosed(3000),
                502,
                r#"{"sandboxId":"i1","message":"The sandbox is running but port is not open","port":3000,"code":502}"#,
            ),
            (
                Failure::TooMany { limit: 5 },
                429,
                r#"{"sandboxId":"i1","message":"Too many connections to this sandbox at once","connectionLimit":5,"code":429}"#,
            ),
        ] {
            let response = failure.answer("i1", &HeaderMap::new());
            assert_eq!(response.status(), status);
            assert_eq!(body_of(response).await, expected);
        }
    }

    #[tokio::test]
    async fn people_get_a_page_and_programs_do_not() {
        let is_page = |pairs: &[(&'static str, &'static str)]| {
            let response = Failure::SandboxNotFound.answer("i1", &headers(pairs));
            response.headers()[header::CONTENT_TYPE] == "text/html; charset=utf-8"
        };
        let browser = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        assert!(is_page(&[browser]));
        assert!(is_page(&[browser, ("sec-fetch-mode", "navigate")]));
        assert!(!is_page(&[browser, ("sec-fetch-mode", "cors")]));
        assert!(!is_page(&[("accept", "*/*")]));
        assert!(!is_page(&[]));
    }

    #[tokio::test]
    async fn nothing_that_somebody_sent_becomes_markup() {
        let failure = Failure::Service {
            port: 1,
            message: "<script>\"'&".to_owned(),
        };
        let page = failure.answer("<b>", &headers(&[("accept", "text/html")]));
        let page = body_of(page).await;
        assert!(page.contains("&lt;script&gt;&quot;&#39;&amp;"), "{page}");
        assert!(
            !page.contains("<b>") && !page.contains("<script>"),
            "{page}"
        );
    }
}
