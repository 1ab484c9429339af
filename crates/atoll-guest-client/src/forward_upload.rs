//! Somebody else's upload of one file, past HTTP where it is large: see
//! [`atoll_protocol::lane`]. Its sender does not notice.

use std::error::Error;
use std::time::Duration;

use atoll_protocol::lane::{PIECE_BYTES_MAX, Verdict};
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use serde::Serialize;

use crate::answer::ANSWER_BOUND;
use crate::client::{GuestClient, full, in_time};
use crate::error::{GuestError, harmless};
use crate::forward::{ForwardedBody, pass_back};
use crate::gateway::FILES_PATH;
use crate::lane::{self, Lane};
use crate::passage::{METADATA_PREFIX, Route, answer_headers};
use crate::upload::{UploadBounds, into_io, watched};

/// Whether a request brings the bytes of one file and nothing else.
pub(crate) fn is_one_file(head: &Parts, route: Route) -> bool {
    let is_bytes = head.headers.get(header::CONTENT_TYPE).is_some_and(|given| {
        given
            .as_bytes()
            .eq_ignore_ascii_case(b"application/octet-stream")
    });
    route == Route::Write
        && head.uri.path() == FILES_PATH
        && is_bytes
        && !head.headers.contains_key(header::CONTENT_ENCODING)
        // They are part of the answer, and may be longer than a verdict.
        && !head
            .headers
            .keys()
            .any(|name| name.as_str().starts_with(METADATA_PREFIX))
}

impl GuestClient {
    /// Passes an upload on, of which `head` is made already.
    pub(crate) async fn forward_upload<B>(
        &self,
        head: Request<()>,
        mut body: B,
        silence: Option<Duration>,
    ) -> Result<Response<ForwardedBody>, GuestError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let first = match gathered(&mut body).await? {
            Gathered::All(bytes) => {
                let (body, progress) = watched(full(bytes));
                let sent = self.send_alone(head.map(|()| body.boxed_unsync()));
                let bounds = UploadBounds {
                    silence: self.silence(),
                    answer: Some(ANSWER_BOUND),
                };
                let answer = progress.guard(sent, bounds).await?;
                return pass_back(answer, Route::Write, silence);
            }
            Gathered::Some(bytes) => bytes,
        };
        let mut request = head.map(|()| full(Bytes::new()));
        lane::ask(request.headers_mut());
        let answer = in_time(self.send_alone(request)).await?;
        if !lane::is_given(&answer) {
            if answer.response.status().is_success() {
                return Err(GuestError::Protocol(
                    "a file was accepted before it was sent".to_owned(),
                ));
            }
            return pass_back(answer, Route::Write, silence);
        }
        let lane = Lane::of(answer).await?;
        let verdict = lane.upload_body(first, body, self.silence()).await?;
        told(&verdict)
    }
}

/// The beginning of a body.
enum Gathered {
    /// There is no more of it.
    All(Bytes),
    /// It is as long as one piece, or longer.
    Some(Bytes),
}

async fn gathered<B>(body: &mut B) -> Result<Gathered, GuestError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let is_large = |length: u64| length >= PIECE_BYTES_MAX as u64;
    if body.size_hint().exact().is_some_and(is_large) {
        return Ok(Gathered::Some(Bytes::new()));
    }
    let mut gathered = BytesMut::new();
    while gathered.len() < PIECE_BYTES_MAX {
        match body.frame().await {
            Some(Ok(frame)) => gathered.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return Err(GuestError::Source(into_io(error.into()))),
            None => return Ok(Gathered::All(gathered.freeze())),
        }
    }
    Ok(Gathered::Some(gathered.freeze()))
}

/// A verdict as the answer that it would have been: the guest says itself
/// what it wrote, and why it did not.
fn told(verdict: &Verdict) -> Result<Response<ForwardedBody>, GuestError> {
    #[derive(Serialize)]
    struct Refusal<'v> {
        code: u16,
        message: &'v str,
    }
    let status = StatusCode::from_u16(verdict.status)
        .ok()
        .filter(|status| *status == StatusCode::OK || (400..600).contains(&verdict.status))
        .ok_or_else(|| GuestError::Protocol("a verdict has no meaning".to_owned()))?;
    let body = if status == StatusCode::OK {
        verdict.text.clone()
    } else {
        let refusal = Refusal {
            code: verdict.status,
            message: &harmless(&verdict.text),
        };
        serde_json::to_string(&refusal).unwrap_or_default()
    };
    let mut headers = HeaderMap::new();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let mut response = Response::new(ForwardedBody::whole(body.into()));
    *response.status_mut() = status;
    *response.headers_mut() = answer_headers(&headers, Route::Write);
    Ok(response)
}
