//! The guest's ports, 49983 and 49999 (code), which end here: nobody but the
//! server talks to a guest.
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
//! | `code.rs` | who may run code, which the protocol lets some do without a token |
//! | `ownership.rs` | the second: whose sandbox it is |
//! | `file_query.rs` | what a URL of `/files` says and signs |
//! | `lane.rs` | large files, which pass by HTTP |
//! | `lifeline.rs` | answers that end when the right to them does |
//! | `trouble.rs` | what a client is told when the guest does not do its part |
//! | `metrics.rs` | `/metrics`, from what the host measures |
//! | `cors.rs` | pages in browsers, which may call from anywhere |
//!
//! Payloads pass unread. **Invariant**: a guest is called only after the whole
//! chain has agreed. **Invariant**: when a sandbox ends or a key is revoked,
//! the connections of everybody concerned break.

mod code;
mod cors;
mod file_query;
mod identity;
mod interceptor;
mod lane;
mod lifeline;
mod metrics;
mod ownership;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use atoll_control::identity::Access;
use atoll_control::running::{Found, RunningSandboxes};
use atoll_guest_client::{
    CodeCall, FRAME_BYTES_MAX, ForwardOptions, ForwardedUser, Route, Service, bounded_frames,
};
use atoll_protocol::{CODE_KEEPALIVE, KEEPALIVE_HEADER};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};

use crate::answer::{self, Failure};
use crate::body::{AnswerBody, Broken, streamed};
use crate::crowd::{Crowd, InCrowd};
use crate::listener::{Client, ClientBody};
use crate::silence::Talkative;
use identity::Identity;
use interceptor::{Admission, Call, Interceptor};
use lifeline::{Tie, tied, while_allowed};
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
            Box::new(code::TrafficToken),
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
        service: Service,
        request: Request<ClientBody>,
        client: &Client,
    ) -> Result<Response<AnswerBody>, Broken> {
        if let Some(agreed) = cors::preflight(&request) {
            return Ok(agreed);
        }
        let answered = self.answer(id, service, request, client).await;
        answered.map(cors::readable)
    }

    /// `/files` without the name of a sandbox: of the one whose token is shown,
    /// or signed it.
    pub(crate) async fn signed(
        &self,
        request: Request<ClientBody>,
        client: &Client,
    ) -> Result<Response<AnswerBody>, Broken> {
        if let Some(agreed) = cors::preflight(&request) {
            return Ok(agreed);
        }
        match identity::sandbox_of(&self.access, &request) {
            // Once more, among the tokens of that sandbox, as for everybody else.
            Ok(id) => {
                let called = self.call(id.as_str(), Service::Envd, request, client);
                called.await
            }
            Err(refusal) => Ok(cors::readable(refusal.answer(request.headers()))),
        }
    }

    async fn answer(
        &self,
        id: &str,
        service: Service,
        request: Request<ClientBody>,
        client: &Client,
    ) -> Result<Response<AnswerBody>, Broken> {
        let route = service.route(request.method(), request.uri());
        let (sandbox, asleep) = match self.running.find(id) {
            Some(Found::Awake(sandbox)) => (Some(sandbox), None),
            Some(Found::Asleep(asleep)) => (Some(Arc::clone(&asleep.sandbox)), Some(asleep)),
            None => (None, None),
        };
        if sandbox.is_none() && (route.is_ok() || service == Service::Code) {
            return Ok(Failure::SandboxNotFound.answer(id, request.headers()));
        }
        let (Ok(route), Some(sandbox)) = (route, sandbox) else {
            return Ok(answer::unknown_path(request.uri().path()));
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
            service,
            route,
            head: &head,
            admission: Admission::None,
        };
        for interceptor in &self.interceptors {
            if let Err(refusal) = interceptor.admit(&mut call).await {
                return Ok(refusal.answer(&head.headers));
            }
        }
        // Only now: who may not come in wakes nobody up.
        if let Some(asleep) = asleep
            && !asleep.wake().await
        {
            return Ok(Failure::SandboxNotFound.answer(id, &head.headers));
        }
        let (user, tie) = match call.admission {
            Admission::None => (ForwardedUser::NotNamed, Tie::None),
            Admission::Open => {
                let Some(end) = self.access.end_of(&sandbox.id) else {
                    return Ok(Failure::SandboxNotFound.answer(id, &head.headers));
                };
                (ForwardedUser::NotNamed, Tie::Sandbox(end))
            }
            Admission::Token(pass) => (ForwardedUser::AsNamed, Tie::Pass(pass.lifeline)),
            Admission::Signature(pass) => (ForwardedUser::NotNamed, Tie::Pass(pass.lifeline)),
        };
        if head.uri.path() == metrics::PATH {
            let measured = metrics::answer(&sandbox);
            return while_allowed(&tie, measured).await;
        }
        if let Route::Lane(_) = route {
            let opening = lane::Opening {
                sandbox: &sandbox,
                client,
                user,
                tie,
                in_crowd,
            };
            return opening.answer(head, &body).await;
        }
        let options = ForwardOptions {
            service,
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
        match while_allowed(&tie, forwarded).await? {
            Ok(response) if service == Service::Code && route == Route::Read => {
                Ok(code::health(response.status()))
            }
            Ok(response) => Ok(pass_back(response, route, tie, in_crowd)),
            Err(error) => {
                let told = trouble::answer(error, (service, route), &sandbox, &asked);
                while_allowed(&tie, told).await?
            }
        }
    }
}

/// An answer of the guest on its way to the client.
fn pass_back(
    response: Response<atoll_guest_client::ForwardedBody>,
    route: Route,
    tie: Tie,
    in_crowd: InCrowd,
) -> Response<AnswerBody> {
    let is_frames = route.is_stream() && response.status() == StatusCode::OK;
    let response = if is_frames {
        response.map(|body| streamed(bounded_frames(body, FRAME_BYTES_MAX)))
    } else {
        response.map(streamed)
    };
    response.map(|body| streamed(tied(body, tie, in_crowd)))
}

/// How long an answer may be silent.
fn silence(route: Route, asked: &HeaderMap) -> Duration {
    if route == Route::Code(CodeCall::Execute) {
        return CODE_KEEPALIVE * 2 + SILENCE_SPARE;
    }
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
