//! The guest's port, 49983, which ends here: nobody but the server talks to a
//! guest.
//!
//! ```text
//! request ─▶ known route? ─▶ running? ─▶ interceptors ─▶ guest ─▶ answer, tied to
//!              404             502         401 …                   the caller's right
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `interceptor.rs` | the chain that every call passes |
//! | `identity.rs` | the first of it: by which right a call comes |
//! | `ownership.rs` | the second: whose sandbox it is |
//! | `file_query.rs` | what a URL of `/files` says and signs |
//! | `lifeline.rs` | answers that end when the right to them does |
//! | `trouble.rs` | what a client is told when the guest does not do its part |
//! | `metrics.rs` | `/metrics`, from what the host measures |
//! | `cors.rs` | pages in browsers, which may call from anywhere |
//!
//! Payloads pass unread. **Invariant**: a guest is called only after the whole
//! chain has agreed. **Invariant**: when a sandbox ends or a key is revoked,
//! the connections of everybody concerned break.

mod cors;
mod file_query;
mod identity;
mod interceptor;
mod lifeline;
mod metrics;
mod ownership;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use atoll_control::identity::{Access, Lifeline};
use atoll_control::running::RunningSandboxes;
use atoll_guest_client::{FRAME_BYTES_MAX, ForwardOptions, ForwardedUser, Route, bounded_frames};
use atoll_protocol::KEEPALIVE_HEADER;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};

use crate::answer::{self, Failure};
use crate::body::{AnswerBody, Broken, streamed};
use crate::crowd::{Crowd, InCrowd};
use crate::listener::ClientBody;
use crate::silence::Talkative;
use identity::Identity;
use interceptor::{Admission, Call, Interceptor};
use lifeline::{tied, while_allowed};
use ownership::Ownership;

/// How long a stream may be silent beyond what its client asked a sign of life for.
const SILENCE_SPARE: Duration = Duration::from_secs(30);
/// The sign of life of clients that do not ask for one, as E2B's have it.
const KEEPALIVE_DEFAULT_S: u64 = 90;
/// The longest sign of life that is waited for: a day.
const KEEPALIVE_MAX_S: u64 = 86_400;
/// How long an answer that is no stream may be silent.
const ANSWER_SILENCE: Duration = Duration::from_secs(120);
/// How long the sender of a file or a question may be silent.
const BODY_SILENCE: Duration = Duration::from_secs(660);
/// The same for input of a command: longer than any sandbox lives.
const INPUT_SILENCE: Duration = Duration::from_secs(366 * 24 * 3600);

/// Calls of guests.
pub(crate) struct DataPlane {
    running: Arc<RunningSandboxes>,
    access: Arc<Access>,
    crowd: Arc<Crowd>,
    /// In this order. Whatever else has a say in calls is added here.
    interceptors: Vec<Box<dyn Interceptor>>,
}

impl DataPlane {
    pub(crate) fn new(
        running: Arc<RunningSandboxes>,
        access: Arc<Access>,
        crowd: Arc<Crowd>,
    ) -> Self {
        let interceptors: Vec<Box<dyn Interceptor>> = vec![
            Box::new(Identity::new(Arc::clone(&access))),
            Box::new(Ownership),
        ];
        Self {
            running,
            access,
            crowd,
            interceptors,
        }
    }

    /// A call of the guest of the sandbox `id`.
    pub(crate) async fn call(
        &self,
        id: &str,
        request: Request<ClientBody>,
    ) -> Result<Response<AnswerBody>, Broken> {
        if let Some(agreed) = cors::preflight(&request) {
            return Ok(agreed);
        }
        self.answer(id, request).await.map(cors::readable)
    }

    /// `/files` without the name of a sandbox: of the one whose token is shown,
    /// or signed it.
    pub(crate) async fn signed(
        &self,
        request: Request<ClientBody>,
    ) -> Result<Response<AnswerBody>, Broken> {
        if let Some(agreed) = cors::preflight(&request) {
            return Ok(agreed);
        }
        match identity::sandbox_of(&self.access, &request) {
            // Once more, among the tokens of that sandbox, as for everybody else.
            Ok(id) => self.call(id.as_str(), request).await,
            Err(refusal) => Ok(cors::readable(refusal.answer())),
        }
    }

    async fn answer(
        &self,
        id: &str,
        request: Request<ClientBody>,
    ) -> Result<Response<AnswerBody>, Broken> {
        let Ok(route) = Route::of(request.method(), request.uri()) else {
            return Ok(answer::unknown_path(request.uri().path()));
        };
        let Some(sandbox) = self.running.get(id) else {
            return Ok(Failure::SandboxNotFound.answer(id, request.headers()));
        };
        let Some(in_crowd) = self.crowd.enter(id) else {
            return Ok(trouble::too_many(
                route,
                id,
                self.crowd.limit(),
                request.headers(),
            ));
        };
        let (head, body) = request.into_parts();
        let mut call = Call {
            sandbox: &sandbox,
            route,
            head: &head,
            admission: Admission::None,
        };
        for interceptor in &self.interceptors {
            if let Err(refusal) = interceptor.admit(&mut call).await {
                return Ok(refusal.answer());
            }
        }
        let (user, lifeline) = match call.admission {
            Admission::None => (ForwardedUser::NotNamed, None),
            Admission::Token(pass) => (ForwardedUser::AsNamed, Some(pass.lifeline)),
            Admission::Signature(pass) => (ForwardedUser::NotNamed, Some(pass.lifeline)),
        };
        if head.uri.path() == metrics::PATH {
            let measured = metrics::answer(&sandbox);
            return while_allowed(lifeline.as_ref(), measured).await;
        }
        let options = ForwardOptions {
            silence: Some(silence(route, &head.headers)),
            user,
        };
        let asked = head.headers.clone();
        // Who streams input to a command may be silent as long as the command runs.
        let patience = if route.is_stream() {
            INPUT_SILENCE
        } else {
            BODY_SILENCE
        };
        let forwarded = sandbox.live.guest().forward(
            Request::from_parts(head, Talkative::new(body, patience)),
            options,
        );
        match while_allowed(lifeline.as_ref(), forwarded).await? {
            Ok(response) => Ok(pass_back(response, route, lifeline, in_crowd)),
            Err(error) => {
                let told = trouble::answer(error, route, &sandbox, &asked);
                while_allowed(lifeline.as_ref(), told).await?
            }
        }
    }
}

/// An answer of the guest on its way to the client.
fn pass_back(
    response: Response<atoll_guest_client::ForwardedBody>,
    route: Route,
    lifeline: Option<Lifeline>,
    in_crowd: InCrowd,
) -> Response<AnswerBody> {
    let is_frames = route.is_stream() && response.status() == StatusCode::OK;
    let response = if is_frames {
        response.map(|body| streamed(bounded_frames(body, FRAME_BYTES_MAX)))
    } else {
        response.map(streamed)
    };
    response.map(|body| streamed(tied(body, lifeline, in_crowd)))
}

/// How long an answer may be silent.
fn silence(route: Route, asked: &HeaderMap) -> Duration {
    if !route.is_stream() {
        return ANSWER_SILENCE;
    }
    let keepalive = asked
        .get(KEEPALIVE_HEADER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .unwrap_or(KEEPALIVE_DEFAULT_S)
        .clamp(1, KEEPALIVE_MAX_S);
    Duration::from_secs(keepalive * 2) + SILENCE_SPARE
}

/// The content type that an answer to a streaming call has.
fn stream_type(asked: &HeaderMap) -> &'static str {
    let given = asked.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    match given {
        Some(b"application/connect+proto") => "application/connect+proto",
        Some(_) | None => "application/connect+json",
    }
}
