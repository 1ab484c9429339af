//! The chain that every call of a guest passes before it goes out.

use std::pin::Pin;
use std::sync::Arc;

use atoll_control::identity::Pass;
use atoll_control::running::Running;
use atoll_guest_client::Route;
use http::request::Parts;
use http::{Response, StatusCode};

use crate::answer;
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
    /// Its token opens the whole sandbox.
    Token(Pass),
    /// Its URL was signed by the holder of a token, and says all that it may do.
    Signature(Pass),
}

/// Why a call does not go on, in words for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            message: message.into(),
        }
    }

    pub(super) fn answer(&self) -> Response<AnswerBody> {
        answer::error(self.status, &self.message)
    }
}
