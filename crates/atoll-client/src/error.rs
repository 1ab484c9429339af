//! What can go wrong between a program and its sandboxes.

use std::time::Duration;

use atoll_guest_client::GuestError;

use crate::code::RunCodeError;
use crate::endpoint::EndpointError;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It is not known where the server is.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The server cannot be reached.
    #[error("cannot reach {server}: {reason}")]
    Unreachable {
        /// Which server.
        server: String,
        /// Why.
        reason: String,
    },
    /// The server did not answer in time.
    #[error("the server gave no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The key is not valid.
    #[error("the server refused the API key: {0}")]
    Unauthorized(String),
    /// There is no such sandbox or template, or it belongs to somebody else.
    #[error("{0}")]
    NotFound(String),
    /// Too many sandboxes or requests.
    #[error("the server has no room: {0}")]
    RateLimited(String),
    /// The server said no.
    #[error("{message} (status {code})")]
    Api {
        /// Status of the answer.
        code: u16,
        /// In the server's words.
        message: String,
        /// For programs, where the status says too little.
        error_code: Option<String>,
    },
    /// What came is no answer of such a server.
    #[error("the server's answer makes no sense: {0}")]
    Protocol(String),
    /// Something in the sandbox.
    #[error(transparent)]
    Sandbox(#[from] GuestError),
    /// Code that was run to its end.
    #[error(transparent)]
    Code(#[from] RunCodeError),
}

impl ClientError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Endpoint(EndpointError::NoKey) => Some(
                "start a server with `atoll serve`, which prints the variables to set, or make a key with `atoll key create`",
            ),
            Self::Endpoint(EndpointError::NotServed(_)) => {
                Some("start one with `atoll serve`, or set `E2B_API_URL` and `E2B_API_KEY`")
            }
            Self::Endpoint(EndpointError::File { .. }) => {
                Some("only the user who runs the server may read it")
            }
            Self::Unreachable { .. } => Some("is `atoll serve` running there?"),
            Self::Unauthorized(_) => Some("`atoll key list` shows the keys of a server"),
            Self::RateLimited(_) => Some("end sandboxes that are not needed, or try again later"),
            Self::Endpoint(EndpointError::InvalidAddress { .. } | EndpointError::InvalidKey)
            | Self::Timeout(_)
            | Self::NotFound(_)
            | Self::Api { .. }
            | Self::Protocol(_)
            | Self::Sandbox(_)
            | Self::Code(_) => None,
        }
    }
}
