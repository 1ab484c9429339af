//! `POST /v2/sandboxes/{id}/connect`, `POST /sandboxes/{id}/connect`, and the
//! older `…/resume`.

use std::time::Duration;

use atoll_protocol::rest::{Connect, Sandbox};
use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::body::Optional;
use super::place::SandboxName;
use super::routes::Answer;

/// How long a sandbox lives at least when its connection does not say.
const TIMEOUT: i64 = 300;

pub(super) async fn second_generation(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Connect>,
) -> Answer<Json<Sandbox>> {
    let longest = plane.lifecycle.settings().lifetime_max;
    let default = i64::try_from(longest.as_secs()).map_or(TIMEOUT, |longest| longest.min(TIMEOUT));
    connect(&plane, &asker, &id, body.timeout.unwrap_or(default)).await
}

pub(super) async fn first_generation(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Connect>,
) -> Answer<Json<Sandbox>> {
    let timeout = body
        .timeout
        .ok_or_else(|| ApiError::bad_request("'timeout' is missing"))?;
    connect(&plane, &asker, &id, timeout).await
}

async fn connect(plane: &Plane, asker: &Asker, id: &str, seconds: i64) -> Answer<Json<Sandbox>> {
    let seconds = u64::try_from(seconds)
        .map_err(|_| ApiError::bad_request("'timeout' cannot be negative"))?;
    let timeout = Duration::from_secs(seconds);
    let connected = plane.lifecycle.connect(&asker.caller, id, timeout).await;
    let connected = connected.map_err(|error| ApiError::of_sandbox(id, error))?;
    Ok(Json(plane.sandbox(connected)))
}

/// Resuming what was paused: as nothing pauses yet, whatever there is runs.
pub(super) async fn resume(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
) -> ApiError {
    match plane.lifecycle.get(&asker.caller, &id).await {
        Ok(_) => ApiError::new(
            StatusCode::CONFLICT,
            format!("sandbox '{id}' is already running"),
        ),
        Err(error) => ApiError::of_sandbox(&id, error),
    }
}
