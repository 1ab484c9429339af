//! `GET /health` and `GET /ready`: whether the server works, and whether it
//! wants requests.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;

use super::Plane;
use super::answer::ApiError;
use super::routes::Answer;

/// A database that takes longer is not there.
const PING_BOUND: Duration = Duration::from_secs(2);

/// What a server that works says.
#[derive(Serialize)]
pub(super) struct Well {
    status: &'static str,
}

pub(super) async fn health(State(plane): State<Plane>) -> Answer<Json<Well>> {
    match tokio::time::timeout(PING_BOUND, plane.database.ping()).await {
        Ok(Ok(())) => Ok(Json(Well { status: "ok" })),
        Ok(Err(error)) => {
            tracing::error!("the database does not answer: {error}");
            Err(unwell("the database does not answer"))
        }
        Err(_) => Err(unwell("the database does not answer in time")),
    }
}

pub(super) async fn ready(State(plane): State<Plane>) -> Answer<Json<Well>> {
    if !plane.is_ready() {
        return Err(unwell("the server is being started or stopped"));
    }
    health(State(plane)).await
}

fn unwell(why: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
}
