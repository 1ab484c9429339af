//! `GET /sandboxes/{id}`.

use atoll_protocol::rest::SandboxDetail;
use axum::Json;
use axum::extract::State;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::place::SandboxName;
use super::routes::Answer;

pub(super) async fn get(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
) -> Answer<Json<SandboxDetail>> {
    let found = plane.lifecycle.get(&asker.caller, &id).await;
    let found = found.map_err(|error| ApiError::of_sandbox(&id, error))?;
    Ok(Json(plane.detail(found)))
}
