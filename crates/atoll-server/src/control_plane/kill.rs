//! `DELETE /sandboxes/{id}`.

use axum::extract::State;
use http::StatusCode;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::place::SandboxName;
use super::routes::Answer;

pub(super) async fn kill(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
) -> Answer<StatusCode> {
    let killed = plane.lifecycle.kill(&asker.caller, &id).await;
    killed.map_err(|error| ApiError::of_sandbox(&id, error))?;
    Ok(StatusCode::NO_CONTENT)
}
