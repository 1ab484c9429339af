//! The code interpreter's port: who may come without a token.
//!
//! E2B's clients send the sandbox's token with `/execute` since 2.x, and with
//! nothing else on this port. Whoever knows a preview URL knows the name of a
//! sandbox, so code runs by token only; where the client that made the sandbox
//! cannot send one, its name has to be enough.

use atoll_control::running::CodeAccess;
use atoll_guest_client::{CodeCall, Route, Service};
use http::{Response, StatusCode};

use super::interceptor::{Call, Interceptor, Refusal, Verdict};
use crate::answer;
use crate::body::AnswerBody;
use crate::proxy::check_traffic_token;

/// Whether a call needs no token.
pub(super) fn is_open(call: &Call<'_>) -> bool {
    match call.route {
        Route::Code(CodeCall::List | CodeCall::Change) => true,
        Route::Code(CodeCall::Execute) => match call.sandbox.code_access {
            CodeAccess::Everybody => true,
            CodeAccess::TokenHolders => false,
        },
        Route::Read
        | Route::Download
        | Route::Write
        | Route::Lane(_)
        | Route::Unary(_)
        | Route::Stream(_) => false,
    }
}

/// Asks for the traffic token of a sandbox that has one: this port is
/// one of those that it is for.
pub(super) struct TrafficToken;

impl Interceptor for TrafficToken {
    fn admit<'a>(&'a self, call: &'a mut Call<'_>) -> Verdict<'a> {
        let verdict = match call.service {
            Service::Envd => Ok(()),
            Service::Code => {
                check_traffic_token(call.sandbox, &call.head.headers).map_err(|failure| {
                    Refusal::Unreachable(failure, call.sandbox.id.as_str().to_owned())
                })
            }
        };
        Box::pin(std::future::ready(verdict))
    }
}

/// The answer to `/health`, when the guest answered so.
pub(super) fn health(guest: StatusCode) -> Response<AnswerBody> {
    if guest.is_success() {
        answer::json(StatusCode::OK, &"OK")
    } else {
        answer::error(StatusCode::BAD_GATEWAY, "the sandbox does not answer")
    }
}
