//! Who may ask: everybody `/health`, the host `/init`, and after that only
//! requests that present the token.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use atoll_protocol::{ACCESS_TOKEN_HEADER, InitRequest};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::boot::is_init;
use crate::settings::{Access, Settings};

const UNAUTHORIZED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// Body of every error outside of RPC.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    code: u16,
    message: &'a str,
}

/// An error answer outside of RPC.
pub(crate) fn error_response(status: StatusCode, message: &str) -> Response {
    (
        status,
        Json(ErrorBody {
            code: status.as_u16(),
            message,
        }),
    )
        .into_response()
}

/// Lets a request pass when it presents the token.
pub(crate) async fn require_token(
    State(settings): State<Arc<Settings>>,
    request: Request,
    next: Next,
) -> Response {
    match settings.check(presented_token(request.headers())) {
        Access::Granted => next.run(request).await,
        Access::Denied | Access::Uninitialized => {
            error_response(StatusCode::UNAUTHORIZED, UNAUTHORIZED)
        }
    }
}

/// `GET /health`.
pub(crate) async fn health() -> Response {
    (
        StatusCode::NO_CONTENT,
        [(header::CACHE_CONTROL, "no-store")],
    )
        .into_response()
}

/// `POST /init`: the first call sets the token, later ones must present it.
pub(crate) async fn init(
    State(settings): State<Arc<Settings>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let access = settings.check(presented_token(&headers));
    if access == Access::Denied {
        return error_response(StatusCode::UNAUTHORIZED, UNAUTHORIZED);
    }
    let init: InitRequest = match serde_json::from_slice(&body) {
        Ok(init) => init,
        Err(error) => {
            return error_response(
                StatusCode::BAD_REQUEST,
                &format!("the body of /init is not understood: {error}"),
            );
        }
    };
    if access == Access::Uninitialized && init.access_token.as_deref().is_none_or(str::is_empty) {
        return error_response(
            StatusCode::BAD_REQUEST,
            "the first /init must set an access token",
        );
    }
    settings.apply(init);
    if is_init() {
        publish_identity(&settings.env());
    }
    StatusCode::NO_CONTENT.into_response()
}

/// Writes what programs in the sandbox look for in order to learn where they
/// are, `/run/e2b/.E2B_SANDBOX` and its like. Only a convenience for them,
/// so a root that cannot be written to is no error.
fn publish_identity(env: &BTreeMap<String, String>) {
    let directory = Path::new("/run/e2b");
    let _ = std::fs::create_dir_all(directory);
    for name in ["E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"] {
        if let Some(value) = env.get(name) {
            let _ = std::fs::write(directory.join(format!(".{name}")), value);
        }
    }
}

/// `GET /envs`.
pub(crate) async fn envs(State(settings): State<Arc<Settings>>) -> Response {
    Json(settings.env()).into_response()
}

fn presented_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers
        .get(ACCESS_TOKEN_HEADER)
        .map(axum::http::HeaderValue::as_bytes)
}

/// The user named by `Authorization: Basic base64("user:")`.
pub(crate) fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    decoded
        .split_once(':')
        .map(|(user, _)| user.to_owned())
        .filter(|user| !user.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_comes_from_basic_authorization() {
        let user = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            basic_user(&headers)
        };
        assert_eq!(user("Basic dXNlcjo="), Some("user".to_owned()));
        assert_eq!(user("basic cm9vdDpwYXNz"), Some("root".to_owned()));
        assert_eq!(user("Basic Og=="), None);
        assert_eq!(user("Bearer dXNlcjo="), None);
        assert_eq!(user("Basic %%%"), None);
        assert_eq!(basic_user(&HeaderMap::new()), None);
    }
}
