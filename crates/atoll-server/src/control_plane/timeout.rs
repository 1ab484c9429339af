//! `POST /sandboxes/{id}/timeout` and `…/refreshes`.

use std::time::Duration;

use atoll_control::lifecycle::{Extension, OperationError};
use atoll_protocol::rest;
use axum::extract::State;
use http::StatusCode;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::body::{Optional, Required};
use super::place::SandboxName;
use super::routes::Answer;

/// Least and most that a refresh extends.
const REFRESH_MIN: u64 = 15;
const REFRESH_MAX: u64 = 3600;

pub(super) async fn set(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Required(body): Required<rest::Timeout>,
) -> Answer<StatusCode> {
    let seconds = u64::try_from(body.timeout)
        .map_err(|_| ApiError::bad_request("'timeout' cannot be negative"))?;
    apply(&plane, &asker, &id, seconds, Extension::Replace).await
}

pub(super) async fn refresh(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<rest::Extension>,
) -> Answer<StatusCode> {
    let seconds = match body.duration {
        None => REFRESH_MIN,
        Some(seconds) => u64::try_from(seconds)
            .ok()
            .filter(|seconds| *seconds <= REFRESH_MAX)
            .ok_or_else(|| {
                ApiError::bad_request(format!("'duration' lies between 0 and {REFRESH_MAX}"))
            })?,
    };
    let seconds = seconds.max(REFRESH_MIN);
    apply(&plane, &asker, &id, seconds, Extension::OnlyLater).await
}

async fn apply(
    plane: &Plane,
    asker: &Asker,
    id: &str,
    seconds: u64,
    extension: Extension,
) -> Answer<StatusCode> {
    let timeout = Duration::from_secs(seconds);
    let set = plane
        .lifecycle
        .set_timeout(&asker.caller, id, timeout, extension)
        .await;
    set.map_err(|error| match error {
        // What holds still has no time, and clients know one answer to that.
        OperationError::Paused => ApiError::no_sandbox(id),
        error => ApiError::of_sandbox(id, error),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
