//! What this version does not have. Lists of it are empty, and what would
//! change something says that it cannot.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde_json::Value;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::place::Name;
use super::routes::Answer;
use super::templates::find;

pub(super) async fn build_template(_asker: Asker) -> ApiError {
    ApiError::bad_request(
        "templates cannot be built over the network in this version of Atoll: use `atoll template build` on its host",
    )
}

/// Templates belong to who runs the server.
pub(super) async fn change_template(
    State(plane): State<Plane>,
    _asker: Asker,
    Name(name): Name,
) -> ApiError {
    match find(&plane, &name) {
        Ok(_) => ApiError::bad_request(
            "templates cannot be changed over the network in this version of Atoll: use `atoll template` on its host",
        ),
        Err(error) => error,
    }
}

/// There are none.
pub(super) async fn none_listed(_asker: Asker) -> Json<Vec<Value>> {
    Json(Vec::new())
}

pub(super) async fn volumes(_asker: Asker) -> ApiError {
    unimplemented("volumes are")
}

pub(super) async fn secrets(_asker: Asker) -> ApiError {
    unimplemented("secrets are")
}

/// Clients know no status of these routes that would say it.
fn unimplemented(what: &str) -> ApiError {
    let message = format!("{what} not part of this version of Atoll");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
}

pub(super) async fn no_volume(_asker: Asker, Name(name): Name) -> Answer<()> {
    Err(missing("volume", &name))
}

pub(super) async fn no_secret(_asker: Asker, Name(name): Name) -> Answer<()> {
    Err(missing("secret", &name))
}

fn missing(what: &str, name: &str) -> ApiError {
    let shown: String = name.chars().take(100).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("{what} '{shown}' not found"))
}
