//! Bodies of requests: JSON, bounded in size and time, whatever their header says.

use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::answer::ApiError;

/// Longest body.
pub(super) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// How long a body may take.
const BODY_BOUND: Duration = Duration::from_secs(30);

/// A body that must be there.
pub(super) struct Required<T>(pub(super) T);

/// A body that may be absent: then everything in it is.
pub(super) struct Optional<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Required<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        parse(&read(request).await?).map(Self)
    }
}

impl<S: Sync, T: DeserializeOwned + Default> FromRequest<S> for Optional<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let bytes = read(request).await?;
        let is_absent = bytes.iter().all(u8::is_ascii_whitespace) || bytes == b"null";
        if is_absent {
            return Ok(Self(T::default()));
        }
        parse(&bytes).map(Self)
    }
}

async fn read(request: Request) -> Result<Vec<u8>, ApiError> {
    let reading = to_bytes(request.into_body(), BODY_BYTES_MAX);
    match tokio::time::timeout(BODY_BOUND, reading).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        // The limit is the only error that leaves somebody to be told.
        Ok(Err(_)) => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body of the request is longer than {BODY_BYTES_MAX} bytes, or was cut off"
            ),
        )),
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body of the request did not arrive in time",
        )),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::bad_request(format!(
            "the body of the request is no valid JSON for this route: {error}"
        ))
    })
}
