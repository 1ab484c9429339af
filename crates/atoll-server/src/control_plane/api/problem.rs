//! Errors of `/api/v1`: one form, and a catalogue that `docs/errors.md`
//! repeats word for word (a test compares both).

use atoll_control::executions::{Attempt, BeginError, PlaceError};
use atoll_control::lifecycle::{CreateError, Full, OperationError};
use atoll_control::sessions::{RunError, SessionError};
use atoll_guest_client::{Code, GuestError};
use atoll_store::db::DatabaseError;
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::answer::chain;
use super::identity::request_id;
use super::wire::AttemptBody;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal, $status:literal, $remediation:literal;)*) => {
        /// What went wrong, in one word that stays the same.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[doc = $doc])* $name,)*
        }

        impl ErrorCode {
            /// The whole catalogue.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The status of the answer.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// What can be done about it.
            #[must_use]
            pub const fn remediation(self) -> &'static str {
                match self { $(Self::$name => $remediation,)* }
            }
        }
    };
}

codes! {
    /// The request cannot be understood, or asks for what cannot be.
    InvalidRequest = "INVALID_REQUEST", 400, "Correct the request as the message says; it will not succeed as it is.";
    /// No valid key came with the request.
    Unauthorized = "UNAUTHORIZED", 401, "Send a valid key as `X-API-Key`, or as `Authorization: Bearer`.";
    /// The caller may not do that.
    Forbidden = "FORBIDDEN", 403, "Ask the owner for a grant, or use a key or an agent that may.";
    /// There is no such thing that the caller may see.
    NotFound = "NOT_FOUND", 404, "Check the id or path; what belongs to another tenant is not found either.";
    /// The route has other methods.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, "Use a method that the document at `/api/v1/openapi.json` lists.";
    /// The body of the request did not come in time.
    RequestTimeout = "REQUEST_TIMEOUT", 408, "Send the body without long pauses.";
    /// It cannot be done in the state that things are in.
    Conflict = "CONFLICT", 409, "Look at the state of the resource, then decide.";
    /// The sandbox is paused.
    SandboxPaused = "SANDBOX_PAUSED", 409, "Resume it with `POST /v2/sandboxes/{id}/connect`, then repeat the request.";
    /// The session is over.
    SessionEnded = "SESSION_ENDED", 409, "Create a new session.";
    /// The body of the request is too long.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", 413, "Send less; large files go through `upload`.";
    /// As many as there may be are there already.
    QuotaExceeded = "QUOTA_EXCEEDED", 429, "End what is not needed, or wait and repeat the request.";
    /// The server could not do it; its log says why.
    Internal = "INTERNAL", 500, "Tell the operator the `request_id`; repeat the request if nothing changes by doing so twice.";
    /// The sandbox did not take it, or stopped answering.
    SandboxUnavailable = "SANDBOX_UNAVAILABLE", 503, "Repeat the request if the message says that nothing has run; otherwise look first at what was done.";
    /// The server is being stopped, or another one has taken over.
    ServerUnavailable = "SERVER_UNAVAILABLE", 503, "Repeat the request in a moment.";
    /// The disk of the sandbox has no room left.
    DiskFull = "DISK_FULL", 507, "Remove files in the sandbox, or use a template with a larger disk.";
}

/// The body of every error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(in super::super) struct ProblemBody {
    /// A word of the catalogue.
    code: String,
    /// What went wrong, for people.
    message: String,
    /// Why, where more is known.
    cause: Option<String>,
    /// What can be done about it.
    remediation: String,
    /// Names this request in the log of the server.
    request_id: String,
    /// Attempts that failed, where something was tried more than once.
    attempts: Vec<AttemptBody>,
}

/// An error on its way to a client.
#[derive(Debug, Clone)]
pub(in super::super) struct Problem {
    code: ErrorCode,
    message: String,
    cause: Option<String>,
    attempts: Vec<Attempt>,
}

impl Problem {
    pub(in super::super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            cause: None,
            attempts: Vec::new(),
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    pub(super) fn not_found(what: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no such {what}"))
    }

    /// Something failed that is none of the client's business.
    pub(in super::super) fn internal(error: &dyn std::error::Error) -> Self {
        let id = request_id();
        tracing::error!("request {id} failed: {}", chain(error));
        Self::new(ErrorCode::Internal, "the server could not do that")
    }

    fn because(self, cause: impl Into<String>) -> Self {
        Self {
            cause: Some(cause.into()),
            ..self
        }
    }

    /// Where there is no route below the prefix.
    pub(in super::super) fn missing_route(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        Self::new(ErrorCode::NotFound, format!("there is no route '{shown}'"))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status());
        let body = ProblemBody {
            code: self.code.as_str().to_owned(),
            message: self.message,
            cause: self.cause,
            remediation: self.code.remediation().to_owned(),
            request_id: request_id(),
            attempts: self.attempts.into_iter().map(AttemptBody::from).collect(),
        };
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(body)).into_response()
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Self {
        Self::internal(&error)
    }
}

impl From<PlaceError> for Problem {
    fn from(error: PlaceError) -> Self {
        let message = error.to_string();
        match error {
            PlaceError::NotFound => Self::not_found("sandbox"),
            PlaceError::OtherAgent => Self::new(ErrorCode::Forbidden, message),
            PlaceError::Paused => Self::new(ErrorCode::SandboxPaused, message),
            PlaceError::Unready => Self::new(ErrorCode::SandboxUnavailable, message),
            PlaceError::TooManyAgents => Self::new(ErrorCode::QuotaExceeded, message),
            PlaceError::Database(error) => Self::internal(&error),
        }
    }
}

impl From<OperationError> for Problem {
    fn from(error: OperationError) -> Self {
        let message = error.to_string();
        match error {
            OperationError::NotFound => Self::not_found("sandbox"),
            OperationError::Paused => Self::new(ErrorCode::SandboxPaused, message),
            OperationError::Running => Self::new(ErrorCode::Conflict, message),
            OperationError::GuestUnresponsive => Self::new(ErrorCode::SandboxUnavailable, message),
            OperationError::LifetimeOver
            | OperationError::FilesOnly(_)
            | OperationError::Wish(_)
            | OperationError::Traffic(_) => Self::invalid(message),
            OperationError::Full(_) => Self::new(ErrorCode::QuotaExceeded, message),
            OperationError::Fenced => Self::new(ErrorCode::ServerUnavailable, message),
            OperationError::Failed(_) | OperationError::Database(_) => Self::internal(&error),
        }
    }
}

impl From<CreateError> for Problem {
    fn from(error: CreateError) -> Self {
        let message = error.to_string();
        match error {
            CreateError::TemplateReference(_)
            | CreateError::Wish(_)
            | CreateError::Traffic(_)
            | CreateError::Refused { .. } => Self::invalid(message),
            CreateError::NoTemplate(_) | CreateError::NotBuilt(_) | CreateError::NoTag { .. } => {
                Self::new(ErrorCode::NotFound, message)
            }
            CreateError::TooMany(_)
            | CreateError::Full(Full::Waited(..) | Full::Queue(..) | Full::Now(_)) => {
                Self::new(ErrorCode::QuotaExceeded, message)
            }
            CreateError::Full(Full::Never(_)) => Self::new(ErrorCode::ServerUnavailable, message),
            CreateError::InProgress | CreateError::Ended | CreateError::OtherRequest => {
                Self::new(ErrorCode::Conflict, message)
            }
            CreateError::KeyOver => Self::new(ErrorCode::Unauthorized, message),
            CreateError::Service(_) => {
                Self::new(ErrorCode::Internal, "the template does not start").because(message)
            }
            CreateError::Fenced | CreateError::Stopping => {
                Self::new(ErrorCode::ServerUnavailable, message)
            }
            CreateError::Catalog(_)
            | CreateError::Open(_)
            | CreateError::Lost(_)
            | CreateError::Seal(_)
            | CreateError::Host(_)
            | CreateError::Database(_) => Self::internal(&error),
        }
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Session(error) => error.into(),
            RunError::Begin(error) => error.into(),
        }
    }
}

impl From<BeginError> for Problem {
    fn from(error: BeginError) -> Self {
        let message = error.to_string();
        match error {
            BeginError::Invalid(_) => Self::invalid(message),
            BeginError::Busy { .. } => Self::new(ErrorCode::QuotaExceeded, message),
            BeginError::Unavailable {
                message: cause,
                attempts,
            } => Self {
                attempts,
                ..Self::new(
                    ErrorCode::SandboxUnavailable,
                    "the sandbox did not take it; nothing has run",
                )
                .because(cause)
            },
            BeginError::Uncertain(cause) => Self::new(
                ErrorCode::SandboxUnavailable,
                "the sandbox broke off before it said whether it runs; it may have run",
            )
            .because(cause),
        }
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::NotFound => Self::not_found("session"),
            SessionError::OtherAgent => Self::new(ErrorCode::Forbidden, message),
            SessionError::Ended(reason) => {
                Self::new(ErrorCode::SessionEnded, "the session has ended").because(reason)
            }
            SessionError::TooMany(_) | SessionError::TooManyAgents => {
                Self::new(ErrorCode::QuotaExceeded, message)
            }
            SessionError::Asleep(cause) => Self::new(
                ErrorCode::SandboxUnavailable,
                "the session's sandbox is there, and does not take commands now; nothing has run",
            )
            .because(cause),
            SessionError::Invalid(_) => Self::invalid(message),
            SessionError::Create(error) => error.into(),
            SessionError::Unavailable { attempts, .. } => Self {
                attempts,
                ..Self::new(ErrorCode::SandboxUnavailable, message)
            },
            SessionError::Operation(error) => error.into(),
            SessionError::Fenced => Self::new(ErrorCode::ServerUnavailable, message),
            SessionError::Seal(_) | SessionError::Database(_) => Self::internal(&error),
        }
    }
}

/// What a guest says about files and running commands. Its words are bounded
/// and harmless; what it does wrong is the sandbox's fault, not the server's.
impl From<GuestError> for Problem {
    fn from(error: GuestError) -> Self {
        let text = error.to_string();
        match error {
            GuestError::Rpc { code, message } => match code {
                Code::NotFound => Self::new(ErrorCode::NotFound, message),
                Code::ResourceExhausted => Self::new(ErrorCode::DiskFull, message),
                Code::PermissionDenied => Self::new(ErrorCode::Forbidden, message),
                // Nobody is who has no account inside; a token that is none has its own error.
                Code::InvalidArgument
                | Code::AlreadyExists
                | Code::FailedPrecondition
                | Code::Unauthenticated => Self::invalid(message),
                _ => Self::new(ErrorCode::SandboxUnavailable, message),
            },
            GuestError::Refused { status, message } => match status {
                404 => Self::new(ErrorCode::NotFound, message),
                403 => Self::new(ErrorCode::Forbidden, message),
                400 | 416 => Self::invalid(message),
                507 => Self::new(ErrorCode::DiskFull, message),
                _ => Self::new(ErrorCode::SandboxUnavailable, message),
            },
            GuestError::NotForwarded(_) | GuestError::Source(_) => Self::invalid(text),
            // So guests answer for files: with the status of a token that is none.
            GuestError::Unauthorized(said) if said.starts_with("invalid username") => {
                Self::invalid(said)
            }
            GuestError::TooLarge { .. } => Self::new(ErrorCode::PayloadTooLarge, text),
            GuestError::Unreachable(_)
            | GuestError::Timeout { .. }
            | GuestError::Unauthorized(_)
            | GuestError::Protocol(_)
            | GuestError::DeadlineExceeded
            | GuestError::Disconnected(_) => {
                Self::new(ErrorCode::SandboxUnavailable, "the sandbox did not answer").because(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_control::executions::OutcomeKind;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../../../docs/errors.md");

    /// The rows of the table whose first cell is code.
    fn rows(heading: &str) -> Vec<Vec<String>> {
        let section = DOCUMENT
            .split("\n## ")
            .find(|part| part.starts_with(heading));
        let lines = section
            .unwrap()
            .lines()
            .filter(|line| line.starts_with("| `"));
        lines
            .map(|line| {
                let cells = line.trim_matches('|').split(" | ");
                cells.map(|cell| cell.trim().to_owned()).collect()
            })
            .collect()
    }

    #[test]
    fn the_catalogue_of_errors_is_the_documented_one() {
        let written: Vec<Vec<String>> = rows("Errors");
        let meant: Vec<Vec<String>> = ErrorCode::ALL
            .iter()
            .map(|code| {
                let status = code.status().to_string();
                vec![
                    format!("`{}`", code.as_str()),
                    status,
                    code.remediation().to_owned(),
                ]
            })
            .collect();
        let without_meaning: Vec<Vec<String>> = written
            .into_iter()
            .map(|row| vec![row[0].clone(), row[1].clone(), row[3].clone()])
            .collect();
        assert_eq!(without_meaning, meant);
    }

    #[test]
    fn the_catalogue_of_outcomes_is_the_documented_one() {
        let written: Vec<(String, String)> = rows("Outcomes")
            .into_iter()
            .map(|row| (row[0].clone(), row[1].clone()))
            .collect();
        let meant: Vec<(String, String)> = OutcomeKind::ALL
            .iter()
            .map(|kind| (format!("`{kind}`"), format!("`{}`", kind.status())))
            .collect();
        assert_eq!(written, meant);
    }
}
