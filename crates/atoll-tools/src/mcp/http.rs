//! Many clients in HTTP. Who they are was found out before; here it is seen to
//! that everybody gets their own session.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full as FullBody};
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::handler::{Desks, Handler, Listing};
use super::sessions::{Full, Principal, SessionBounds, Sessions};
use crate::desk::{Desk, SHARED_PLOTS_BYTES_MAX};
use crate::error::ToolError;
use crate::tools::TIMEOUT_MAX_SECONDS;
use crate::workplace::Workplace;

/// Largest message of a client.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Sessions that end at the same time.
const ENDS_AT_ONCE: usize = 32;
/// What a call may take beyond its timeout.
const CALL_GRACE: Duration = Duration::from_secs(120);

const SESSION_ID: &str = "mcp-session-id";
const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// From here on there are no sessions in the protocol.
const WITHOUT_SESSIONS: &str = "2026-07-28";

/// What is answered.
pub type McpResponse = Response<BoxBody<Bytes, Infallible>>;

/// The tools for clients in HTTP.
pub struct HttpService {
    service: StreamableHttpService<Handler, LocalSessionManager>,
    manager: Arc<LocalSessionManager>,
    sessions: Sessions,
    /// Bytes that plots of all sessions may take.
    plots_room: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Why a request has no desk.
enum NoDesk {
    Full,
    Workplace(ToolError),
}

impl From<Full> for NoDesk {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

impl HttpService {
    /// A service that answers pages of these origins, and programs.
    #[must_use]
    pub fn new(origins: &[String], bounds: SessionBounds) -> Self {
        let stop = CancellationToken::new();
        let mut manager = LocalSessionManager::default();
        // Ours ends them first, with what is in them.
        manager.session_config.keep_alive = Some(keep_alive(&bounds));
        let manager = Arc::new(manager);
        let config = StreamableHttpServerConfig::default()
            // Whoever asks has shown a key; a page of another origin is refused below.
            .disable_allowed_hosts()
            .with_allowed_origins(origins)
            .enforce_origin_validation()
            .with_cancellation_token(stop.clone())
            .with_max_request_body_bytes(MESSAGE_BYTES_MAX);
        let handler = || {
            Ok(Handler {
                desks: Desks::InRequest,
                listing: Listing::Tools,
            })
        };
        Self {
            service: StreamableHttpService::new(handler, Arc::clone(&manager), config),
            manager,
            sessions: Sessions::new(bounds),
            plots_room: Arc::new(Semaphore::new(SHARED_PLOTS_BYTES_MAX)),
            stop,
        }
    }

    /// Answers a request of `principal`; `workplace` is made when it needs one.
    pub async fn answer<B>(
        &self,
        principal: &Principal,
        workplace: impl Fn() -> Result<Arc<dyn Workplace>, ToolError> + Sync,
        mut request: Request<B>,
    ) -> McpResponse
    where
        B: Body + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let desk = || -> Result<Arc<Desk>, NoDesk> {
            let workplace = workplace().map_err(NoDesk::Workplace)?;
            let plots_room = Arc::clone(&self.plots_room);
            Ok(Arc::new(Desk::sharing(workplace, plots_room)))
        };
        let version = text(request.headers(), PROTOCOL_VERSION);
        let is_stateless = version.is_some_and(|version| version.as_str() >= WITHOUT_SESSIONS);
        let session = text(request.headers(), SESSION_ID);
        if let Some(session) = session {
            let Some(desk) = self.sessions.find(&session, principal) else {
                return missing();
            };
            let ends = request.method() == Method::DELETE;
            request.extensions_mut().insert(desk);
            let response = self.service.handle(request).await;
            if ends && response.status().is_success() {
                self.end(&session).await;
            }
            return response;
        }
        if is_stateless {
            match self.sessions.shared(principal, desk) {
                Ok(desk) => drop(request.extensions_mut().insert(desk)),
                Err(error) => return refused(&error),
            }
        }
        let response = self.service.handle(request).await;
        let begun = response.headers().get(SESSION_ID);
        let Some(id) = begun.and_then(|id| id.to_str().ok()).map(str::to_owned) else {
            return response;
        };
        let kept = desk().and_then(|desk| Ok(self.sessions.begin(&id, principal, desk)?));
        match kept {
            Ok(()) => response,
            Err(error) => {
                let _ = self.manager.close_session(&id.into()).await;
                refused(&error)
            }
        }
    }

    async fn end(&self, id: &str) {
        let Some(desk) = self.sessions.end(id) else {
            return;
        };
        let _ = self.manager.close_session(&id.into()).await;
        desk.close().await;
    }

    /// Ends what is over: sessions that nobody uses, that the client ended, or
    /// whose key `is_valid` does not know any more. Never returns.
    pub async fn keep_tidy<F>(&self, is_valid: impl Fn(Principal) -> F)
    where
        F: Future<Output = bool>,
    {
        let mut ticks = tokio::time::interval(self.sessions.bounds().sweep);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut strangers = Vec::new();
            for principal in self.sessions.principals() {
                if !is_valid(principal.clone()).await {
                    strangers.push(principal);
                }
            }
            let idle = self.sessions.bounds().idle;
            let mut over = Vec::new();
            for (id, principal, desk) in self.sessions.begun() {
                let is_there = self.manager.has_session(&id.as_str().into()).await;
                let is_over = desk.idle() > idle
                    || strangers.contains(&principal)
                    || !is_there.unwrap_or(false);
                if is_over {
                    over.push(id);
                }
            }
            let is_over = |principal: &Principal, desk: &Desk| {
                desk.idle() > idle || strangers.contains(principal)
            };
            let shared = self.sessions.end_shared(is_over);
            self.end_all(over, shared).await;
        }
    }

    /// Ends all streams: the server stops.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Ends all sessions with their sandboxes.
    pub async fn close(&self) {
        self.stop();
        let begun = self.sessions.begun().into_iter().map(|(id, _, _)| id);
        let shared = self.sessions.end_shared(|_, _| true);
        self.end_all(begun.collect(), shared).await;
    }

    /// Ends sessions, many at a time: each waits for its sandboxes.
    async fn end_all(&self, begun: Vec<String>, shared: Vec<Arc<Desk>>) {
        let begun = begun
            .into_iter()
            .map(|id| async move { self.end(&id).await }.boxed());
        let shared = shared
            .into_iter()
            .map(|desk| async move { desk.close().await }.boxed());
        let ends = stream::iter(begun.chain(shared));
        ends.for_each_concurrent(ENDS_AT_ONCE, |end| end).await;
    }
}

/// When the protocol's own part of a session ends that hears nothing: after
/// the longest call, during which a client may well be silent.
fn keep_alive(bounds: &SessionBounds) -> Duration {
    bounds.idle * 2 + Duration::from_secs_f64(TIMEOUT_MAX_SECONDS) + CALL_GRACE
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?;
    Some(value.to_str().unwrap_or_default().to_owned())
}

fn refused(error: &NoDesk) -> McpResponse {
    match error {
        NoDesk::Full => said(
            StatusCode::TOO_MANY_REQUESTS,
            "there are as many sessions as there may be; end one, or try again later",
        ),
        NoDesk::Workplace(error) => said(StatusCode::SERVICE_UNAVAILABLE, &error.cause),
    }
}

/// The same for a session that ended, that never was, and that is somebody else's.
fn missing() -> McpResponse {
    said(
        StatusCode::NOT_FOUND,
        "there is no such session; begin a new one",
    )
}

fn said(status: StatusCode, message: &str) -> McpResponse {
    let body = json!({
        "jsonrpc": "2.0",
        "id": null,
        "error": {"code": -32001, "message": message},
    });
    let body = FullBody::new(Bytes::from(body.to_string())).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use std::io;

    use atoll_client::SandboxState;
    use atoll_guest_client::GuestClient;
    use tokio::time::Instant;

    use super::*;
    use crate::workplace::{Listed, Place, Preview, Promise, Wanted};

    /// Sandboxes whose end takes a second.
    struct Slow;

    impl Workplace for Slow {
        fn create(&self, _: Wanted) -> Promise<'_, Result<Place, ToolError>> {
            let dial = Arc::new(|_| Err(io::ErrorKind::ConnectionRefused.into()));
            let guest = GuestClient::new(dial, String::new());
            Box::pin(async {
                Ok(Place {
                    id: "slow".to_owned(),
                    template: "base".to_owned(),
                    code: guest.clone(),
                    guest,
                    served: None,
                })
            })
        }
        fn find<'a>(&'a self, id: &'a str) -> Promise<'a, Result<Place, ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(id)) })
        }
        fn look<'a>(&'a self, id: &'a str) -> Promise<'a, Result<SandboxState, ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(id)) })
        }
        fn list(&self) -> Promise<'_, Result<Vec<Listed>, ToolError>> {
            Box::pin(async { Ok(Vec::new()) })
        }
        fn kill<'a>(&'a self, _: &'a str) -> Promise<'a, Result<(), ToolError>> {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(())
            })
        }
        fn keep<'a>(&'a self, _: &'a str, _: Duration) -> Promise<'a, ()> {
            Box::pin(async {})
        }
        fn preview<'a>(
            &'a self,
            place: &'a Place,
            _: u16,
        ) -> Promise<'a, Result<Preview, ToolError>> {
            Box::pin(async move { Err(ToolError::no_sandbox(&place.id)) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_do_not_wait_for_each_others_end() {
        let service = HttpService::new(&[], SessionBounds::default());
        for number in 0..64 {
            let desk = Arc::new(Desk::new(Arc::new(Slow)));
            desk.place(None).await.unwrap();
            let principal = Principal::new("a", number.to_string());
            let sessions = &service.sessions;
            if number % 2 == 0 {
                let id = number.to_string();
                sessions.begin(&id, &principal, desk).unwrap();
            } else {
                sessions.shared(&principal, || Ok::<_, Full>(desk)).unwrap();
            }
        }
        let started = Instant::now();
        service.close().await;
        assert_eq!(started.elapsed().as_secs(), 2);
        assert!(service.sessions.begun().is_empty());
    }

    #[test]
    fn no_session_ends_under_its_longest_call() {
        let bounds = SessionBounds::default();
        let call = Duration::from_secs(3600);
        assert!(keep_alive(&bounds) > bounds.idle + call);
    }
}
