//! The chain that every call of a guest passes before it goes out.

use std::pin::Pin;
use std::sync::Arc;

use atoll_control::identity::Pass;
use atoll_control::running::Running;
use atoll_guest_client::{Route, Service};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::answer::{self, Failure};
use crate::body::AnswerBody;

/// Whether a call may go on, in time.
pub(super) type Verdict<'a> = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>>;

/// Somebody who has a say in calls of guests. They are asked one after the
/// other, and the first no is the last word.
pub(super) trait Interceptor: Send + Sync {
    /// Lets a call go on, and may write down what it found out about it.
    fn admit<'a>(&'a self, call: &'a mut Call<'_>) -> Verdict<'a>;
}

/// A call of a guest that was not made yet.
pub(super) struct Call<'c> {
    pub(super) sandbox: &'c Arc<Running>,
    pub(super) service: Service,
    pub(super) route: Route,
    /// Of the client's request.
    pub(super) head: &'c Parts,
    pub(super) admission: Admission,
}

/// By which right a call comes.
#[derive(Debug, Clone)]
pub(super) enum Admission {
    /// By none.
    None,
    /// By none either: the protocol asks for none here, see [`super::code`].
    Open,
    /// Its token opens the whole sandbox.
    Token(Pass),
    /// Its URL was signed by the holder of a token, and says all that it may do.
    Signature(Pass),
}

/// Why a call does not go on, in words for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nobody is known who may do that.
    Unauthorized(String),
    /// The sandbox of that name is not to be reached in this way.
    Unreachable(Failure, String),
}

impl Refusal {
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::Unauthorized(message.into())
    }

    /// The answer to a request with these headers.
    pub(super) fn answer(&self, asked: &HeaderMap) -> Response<AnswerBody> {
        match self {
            Self::Unauthorized(message) => answer::error(StatusCode::UNAUTHORIZED, message),
            Self::Unreachable(failure, id) => failure.answer(id, asked),
        }
    }
}
