//! By which right a call comes: a token in a header, a signature in a URL, or
//! none, which is enough for `/health`.

use std::sync::Arc;

use atoll_control::identity::Access;
use atoll_engine::SandboxId;
use atoll_guest_client::Route;
use atoll_protocol::ACCESS_TOKEN_HEADER;
use atoll_protocol::signature::equal_in_constant_time;
use http::{HeaderMap, Request};

use super::code;
use super::file_query::FileQuery;
use super::interceptor::{Admission, Call, Interceptor, Refusal, Verdict};

const UNAUTHORIZED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// Said where a signature would have been good enough, but a token was sent.
const WRONG_TOKEN: &str = "access token present in header but does not match";

/// Finds out who calls.
pub(super) struct Identity {
    access: Arc<Access>,
}

impl Identity {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access }
    }

    fn admission(&self, call: &Call<'_>) -> Result<Admission, Refusal> {
        let path = call.head.uri.path();
        if path == "/health" {
            return Ok(Admission::None);
        }
        let is_file = call.route == Route::Download || path == "/files";
        if let Some(token) = presented(&call.head.headers)? {
            let verified = self.access.verify(&call.sandbox.id, token);
            return verified.map(Admission::Token).map_err(|_| {
                Refusal::unauthorized(if is_file { WRONG_TOKEN } else { UNAUTHORIZED })
            });
        }
        if code::is_open(call) {
            return Ok(Admission::Open);
        }
        if !is_file {
            return Err(Refusal::unauthorized(UNAUTHORIZED));
        }
        FileQuery::of(&call.head.method, &call.head.uri)
            .and_then(|query| {
                query.signer(|is_signer| self.access.find_in(&call.sandbox.id, is_signer))
            })
            .map(Admission::Signature)
            .map_err(|error| Refusal::unauthorized(error.to_string()))
    }
}

impl Interceptor for Identity {
    fn admit<'a>(&'a self, call: &'a mut Call<'_>) -> Verdict<'a> {
        Box::pin(async move {
            call.admission = self.admission(call)?;
            Ok(())
        })
    }
}

/// The sandbox of a request for `/files` that names none: by the token that it
/// shows, or that its URL was signed with.
pub(super) fn sandbox_of<B>(access: &Access, request: &Request<B>) -> Result<SandboxId, Refusal> {
    if let Some(token) = presented(request.headers())? {
        let is_shown =
            |candidate: &str| equal_in_constant_time(candidate.as_bytes(), token.as_bytes());
        let found = access.find(is_shown);
        return found
            .map(|(sandbox, _pass)| sandbox)
            .ok_or_else(|| Refusal::unauthorized(WRONG_TOKEN));
    }
    FileQuery::of(request.method(), request.uri())
        .and_then(|query| query.signer(|is_signer| access.find(is_signer)))
        .map(|(sandbox, _pass)| sandbox)
        .map_err(|error| Refusal::unauthorized(error.to_string()))
}

/// The token of a request, if it has one.
fn presented(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(ACCESS_TOKEN_HEADER).iter();
    let value = values.next().filter(|value| !value.is_empty());
    if values.next().is_some() {
        // Whoever is on the way may have looked at the other one.
        return Err(Refusal::unauthorized(UNAUTHORIZED));
    }
    let unreadable = |_| Refusal::unauthorized(UNAUTHORIZED);
    value
        .map(|value| value.to_str().map_err(unreadable))
        .transpose()
}
