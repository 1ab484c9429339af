//! Errors as clients know them: the status, the same number in the body, and
//! whether the request may be sent again.

use atoll_control::lifecycle::{CreateError, Full, OperationError};
use atoll_protocol::rest::ErrorBody;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, Uri, header};

use super::api::{ErrorCode, PREFIX, Problem};

/// Header by which clients learn whether to try again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// When somebody who was turned away for want of room should ask again, in seconds.
const RETRY_AFTER_SECONDS: u16 = 5;

/// A guest that does not answer, where that was asked for.
const GUEST_UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// The status says enough.
    AsTheStatusSays,
    /// It may, soon.
    Yes,
    /// It will not.
    No,
    /// It may, after so many seconds.
    After(u16),
}

/// An error on its way to a client.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// For programs, where the status says too little.
    error_code: Option<&'static str>,
    retry: Retry,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            error_code: None,
            retry: Retry::AsTheStatusSays,
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Something failed that is none of the client's business: it is told
    /// that much, and the log says why.
    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!("a request failed: {}", chain(error));
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server could not do that; its log says why",
        )
    }

    /// An error of an operation on the sandbox `id`.
    pub(super) fn of_sandbox(id: &str, error: OperationError) -> Self {
        match error {
            OperationError::NotFound => Self::no_sandbox(id),
            // Two states, two answers: clients tell them apart by the status.
            OperationError::Paused => {
                Self::new(StatusCode::CONFLICT, format!("sandbox '{id}' is paused"))
            }
            OperationError::Running => {
                let message = format!("sandbox '{id}' is already running");
                Self::new(StatusCode::CONFLICT, message)
            }
            OperationError::GuestUnresponsive => {
                let message = format!("the guest of sandbox '{id}' does not answer");
                Self {
                    error_code: Some(GUEST_UNRESPONSIVE),
                    ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
                }
            }
            OperationError::FilesOnly(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).retry(Retry::No)
            }
            OperationError::Full(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string())
                .retry(Retry::After(RETRY_AFTER_SECONDS)),
            OperationError::LifetimeOver => Self::bad_request(error.to_string()),
            OperationError::Wish(error) => Self::bad_request(error.to_string()),
            OperationError::Traffic(error) => Self::bad_request(error.to_string()),
            OperationError::Fenced => Self::unavailable(),
            OperationError::Failed(_) | OperationError::Database(_) => Self::internal(&error),
        }
    }

    /// What is told of it where the status of the answer says something else.
    pub(super) fn body(self) -> ErrorBody {
        ErrorBody {
            code: self.status.as_u16(),
            message: self.message,
            error_code: self.error_code.map(str::to_owned),
        }
    }

    /// The same text for a sandbox of somebody else and for none at all.
    pub(super) fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            format!("sandbox '{shown}' not found"),
        )
    }

    fn unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "this server is being stopped; try again in a moment",
        )
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        let message = error.to_string();
        match error {
            CreateError::TemplateReference(_)
            | CreateError::Wish(_)
            | CreateError::Traffic(_)
            | CreateError::Refused { .. } => Self::bad_request(message),
            CreateError::NoTemplate(_) | CreateError::NotBuilt(_) | CreateError::NoTag { .. } => {
                Self::new(StatusCode::NOT_FOUND, message)
            }
            CreateError::TooMany(_)
            | CreateError::Full(Full::Waited(..) | Full::Queue(..) | Full::Now(_)) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, message)
                    .retry(Retry::After(RETRY_AFTER_SECONDS))
            }
            CreateError::Full(Full::Never(_)) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry(Retry::No)
            }
            CreateError::InProgress => Self::new(StatusCode::CONFLICT, message).retry(Retry::Yes),
            CreateError::Ended => Self::new(StatusCode::CONFLICT, message).retry(Retry::No),
            CreateError::OtherRequest => Self::new(StatusCode::UNPROCESSABLE_ENTITY, message),
            CreateError::KeyOver => Self::new(StatusCode::UNAUTHORIZED, message),
            // What the template wants to run is its owner's business.
            CreateError::Service(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
            CreateError::Fenced | CreateError::Stopping => Self::unavailable(),
            CreateError::Catalog(_)
            | CreateError::Open(_)
            | CreateError::Lost(_)
            | CreateError::Seal(_)
            | CreateError::Host(_)
            | CreateError::Database(_) => Self::internal(&error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, retry) = (self.status, self.retry);
        let mut response = (status, Json(self.body())).into_response();
        let retry = match retry {
            Retry::AsTheStatusSays => return response,
            Retry::Yes => "true",
            Retry::No => "false",
            Retry::After(seconds) => {
                let headers = response.headers_mut();
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                return response;
            }
        };
        response
            .headers_mut()
            .insert(SHOULD_RETRY, HeaderValue::from_static(retry));
        response
    }
}

/// The answer where there is no route.
pub(super) async fn missing_route(uri: Uri) -> Response {
    if uri.path().starts_with(PREFIX) {
        return Problem::missing_route(uri.path()).into_response();
    }
    let path: String = uri.path().chars().take(200).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no route '{path}'")).into_response()
}

/// The answer where a route has other methods.
pub(super) async fn wrong_method(uri: Uri) -> Response {
    let message = "this route does not have that method";
    if uri.path().starts_with(PREFIX) {
        return Problem::new(ErrorCode::MethodNotAllowed, message).into_response();
    }
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response()
}

/// An error with all its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
