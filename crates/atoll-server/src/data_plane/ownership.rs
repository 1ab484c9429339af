//! Whose sandbox a call is for: that of the tenant whose right it comes by.

use super::code;
use super::interceptor::{Admission, Call, Interceptor, Refusal, Verdict};

/// Lets nobody into the sandbox of another tenant.
pub(super) struct Ownership;

impl Interceptor for Ownership {
    fn admit<'a>(&'a self, call: &'a mut Call<'_>) -> Verdict<'a> {
        let is_theirs = match &call.admission {
            Admission::Token(pass) | Admission::Signature(pass) => {
                pass.tenant == call.sandbox.tenant
            }
            // The chain before let it pass because it is nobody's business.
            Admission::None => call.head.uri.path() == "/health",
            Admission::Open => code::is_open(call),
        };
        Box::pin(std::future::ready(if is_theirs {
            Ok(())
        } else {
            Err(Refusal::unauthorized(
                "the token is not valid for this sandbox",
            ))
        }))
    }
}
