//! `POST /v2/sandboxes/{id}/connect`, `POST /sandboxes/{id}/connect`, the older
//! `…/resume`, and `…/pause`.

use std::time::Duration;

use atoll_control::lifecycle::{Found, OperationError, PauseCondition, PauseMode};
use atoll_protocol::rest::{Connect, Pause, Sandbox};
use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::Plane;
use super::answer::{ApiError, Retry};
use super::authentication::Asker;
use super::body::Optional;
use super::place::SandboxName;
use super::routes::Answer;

/// How long a sandbox lives at least when its connection does not say.
const TIMEOUT: i64 = 300;

type Connected = (StatusCode, Json<Sandbox>);

pub(super) async fn second_generation(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Connect>,
) -> Answer<Connected> {
    connect(&plane, &asker, &id, body).await
}

pub(super) async fn first_generation(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Connect>,
) -> Answer<Connected> {
    if body.timeout.is_none() {
        return Err(ApiError::bad_request("'timeout' is missing"));
    }
    connect(&plane, &asker, &id, body).await
}

async fn connect(plane: &Plane, asker: &Asker, id: &str, body: Connect) -> Answer<Connected> {
    let timeout = timeout(plane, body)?;
    if body.memory == Some(false) {
        let found = plane.lifecycle.get(&asker.caller, id).await;
        let found = found.map_err(|error| ApiError::of_sandbox(id, error))?;
        // One without memory boots anyway.
        if PauseMode::of(&found.view.row) == PauseMode::Full {
            return Err(ApiError::bad_request(
                "only a sandbox that was paused without its memory wakes up without it: leave 'memory' out",
            ));
        }
    }
    let connected = plane.lifecycle.connect(&asker.caller, id, timeout).await;
    let (connected, found) = connected.map_err(|error| not_woken(id, error))?;
    let status = match found {
        Found::Running => StatusCode::OK,
        Found::Paused => StatusCode::CREATED,
    };
    Ok((status, Json(plane.sandbox(connected))))
}

/// Why a sandbox does not run.
fn not_woken(id: &str, error: OperationError) -> ApiError {
    match error {
        OperationError::Failed(reason) => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("sandbox '{id}' cannot be woken up now, and stays paused: {reason}"),
        )
        .retry(Retry::Yes),
        error => ApiError::of_sandbox(id, error),
    }
}

fn timeout(plane: &Plane, body: Connect) -> Result<Duration, ApiError> {
    let longest = plane.lifecycle.settings().lifetime_max;
    let default = i64::try_from(longest.as_secs()).map_or(TIMEOUT, |longest| longest.min(TIMEOUT));
    let seconds = u64::try_from(body.timeout.unwrap_or(default))
        .map_err(|_| ApiError::bad_request("'timeout' cannot be negative"))?;
    Ok(Duration::from_secs(seconds))
}

/// Resuming what was paused; what runs is not touched.
pub(super) async fn resume(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Connect>,
) -> Answer<Connected> {
    let timeout = timeout(&plane, body)?;
    let resumed = plane.lifecycle.resume(&asker.caller, &id, timeout).await;
    let resumed = resumed.map_err(|error| not_woken(&id, error))?;
    Ok((StatusCode::CREATED, Json(plane.sandbox(resumed))))
}

pub(super) async fn pause(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Pause>,
) -> Answer<StatusCode> {
    let mode = match body.memory {
        Some(false) => PauseMode::Filesystem,
        Some(true) | None => PauseMode::Full,
    };
    let condition = match body.require_healthy_guest {
        Some(true) => PauseCondition::HealthyGuest,
        Some(false) | None => PauseCondition::None,
    };
    let pausing = plane.lifecycle.pause(&asker.caller, &id, mode, condition);
    pausing.await.map_err(|error| match error {
        OperationError::Failed(reason) => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("sandbox '{id}' cannot be paused now, and runs on: {reason}"),
        )
        .retry(Retry::Yes),
        error => ApiError::of_sandbox(&id, error),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
