//! What a path names.

use axum::extract::{FromRequestParts, Path};
use http::StatusCode;
use http::request::Parts;

use super::answer::ApiError;

/// The `{sandbox}` of a path. What cannot be a name is one that nobody has.
pub(super) struct SandboxName(pub(super) String);

/// What else a path names, decoded.
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for SandboxName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|_| ApiError::no_sandbox(""))?;
        // An older form has the id of a client behind it.
        let id = name.split_once('-').map_or(name.as_str(), |(id, _)| id);
        Ok(Self(id.to_owned()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) =
            path.map_err(|_| ApiError::new(StatusCode::NOT_FOUND, "the path names nothing"))?;
        Ok(Self(name))
    }
}
