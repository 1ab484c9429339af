//! What a client is told when the guest does not do its part.
//!
//! Clients of RPC read Connect's errors; a bare status would mean something
//! else to some of them. That the sandbox or its guest is not there is said as
//! the proxy says it, which all of them know.

use atoll_control::running::Running;
use atoll_guest_client::{Code, GuestError, Route, Service};
use atoll_protocol::connect::{FLAG_END_OF_STREAM, encode_frame};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use super::stream_type;
use crate::answer::{self, Failure, has_ended};
use crate::body::{AnswerBody, Broken, whole};

/// The answer to a request with these headers whose call failed.
///
/// # Errors
/// When the client's own request broke, and nobody is there to be told.
pub(super) async fn answer(
    error: GuestError,
    (service, route): (Service, Route),
    sandbox: &Running,
    asked: &HeaderMap,
) -> Result<Response<AnswerBody>, Broken> {
    let (code, message) = match error {
        GuestError::Source(_) => return Err(Broken("the request broke off")),
        GuestError::Unreachable(_) | GuestError::Disconnected(_) => {
            let failure = if has_ended(sandbox).await {
                Failure::SandboxNotFound
            } else {
                Failure::PortClosed(service.port())
            };
            return Ok(failure.answer(sandbox.id.as_str(), asked));
        }
        GuestError::Rpc { code, message } => (code, message),
        GuestError::NotForwarded(why) => (
            Code::InvalidArgument,
            format!("the request cannot pass: {why}"),
        ),
        GuestError::Timeout { .. } | GuestError::DeadlineExceeded => {
            (Code::Unavailable, error.to_string())
        }
        GuestError::Unauthorized(_)
        | GuestError::Refused { .. }
        | GuestError::Protocol(_)
        | GuestError::TooLarge { .. } => (Code::Internal, error.to_string()),
    };
    if route.is_call() {
        return Ok(connect_error(code, &message, route, asked));
    }
    let status = match code {
        // A guest that does not do its part is a bad gateway, not a bad server.
        Code::Internal => StatusCode::BAD_GATEWAY,
        Code::Unavailable => StatusCode::GATEWAY_TIMEOUT,
        code => StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    Ok(answer::error(status, &message))
}

/// The answer to one request more than a sandbox is given.
pub(super) fn too_many(
    route: Route,
    id: &str,
    limit: usize,
    asked: &HeaderMap,
) -> Response<AnswerBody> {
    if route.is_call() {
        let message = format!("more than {limit} requests for this sandbox at once");
        return connect_error(Code::ResourceExhausted, &message, route, asked);
    }
    Failure::TooMany { limit }.answer(id, asked)
}

/// An error as clients of RPC read it: a stream is answered with 200, and says
/// in its last frame what went wrong.
fn connect_error(
    code: Code,
    message: &str,
    route: Route,
    asked: &HeaderMap,
) -> Response<AnswerBody> {
    #[derive(Serialize)]
    struct Error<'a> {
        code: &'a str,
        message: &'a str,
    }
    #[derive(Serialize)]
    struct End<'a> {
        error: Error<'a>,
    }
    let error = Error {
        code: code.as_str(),
        message,
    };
    if !route.is_stream() {
        let status =
            StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return answer::json(status, &error);
    }
    // Two short texts can always be written, and fit into a frame.
    let payload = serde_json::to_vec(&End { error }).unwrap_or_default();
    let frame = encode_frame(FLAG_END_OF_STREAM, &payload).unwrap_or_default();
    let mut response = Response::new(whole(frame));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(stream_type(asked)),
    );
    response
}
