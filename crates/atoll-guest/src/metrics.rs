//! `GET /metrics`: what the sandbox uses, as it sees it from inside.

use axum::Json;
use axum::response::{IntoResponse, Response};

/// `GET /metrics`.
pub(crate) async fn metrics() -> Response {
    Json(serde_json::json!({})).into_response()
}
