//! One request: routed, and answered by whoever it is for.

use std::sync::Arc;
use std::time::Duration;

use atoll_control::identity::Access;
use atoll_control::running::{Found, Running, RunningSandboxes};
use atoll_guest_client::Service;
use atoll_protocol::{CODE_PORT, ENVD_PORT, PASSAGE_PORT};
use axum::extract::ConnectInfo;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use crate::answer::{self, Failure};
use crate::body::{AnswerBody, Broken, streamed};
use crate::crowd::Crowd;
use crate::data_plane::DataPlane;
use crate::listener::{Bounds, Client, ClientBody};
use crate::proxy::{Proxy, check_traffic_token};
use crate::routing::{self, Destination, Names};
use crate::silence::Talkative;

/// How long the body of a request to the control plane may be silent.
const CONTROL_SILENCE: Duration = Duration::from_secs(60);

/// What the server serves.
pub struct Services {
    /// The control plane.
    pub control: axum::Router,
    /// Which sandboxes there are.
    pub running: Arc<RunningSandboxes>,
    /// Who may reach which.
    pub access: Arc<Access>,
    /// What the server is called.
    pub names: Names,
    /// What clients are given.
    pub bounds: Bounds,
}

/// Everything that requests meet.
pub(crate) struct App {
    control: TowerToHyperService<axum::Router>,
    data_plane: DataPlane,
    proxy: Proxy,
    running: Arc<RunningSandboxes>,
    names: Names,
}

impl App {
    pub(crate) fn new(services: Services) -> Self {
        let Services {
            control,
            running,
            access,
            names,
            bounds,
        } = services;
        Self {
            control: TowerToHyperService::new(control),
            data_plane: DataPlane::new(
                Arc::clone(&running),
                Arc::clone(&access),
                Crowd::new(bounds.requests_per_sandbox),
            ),
            proxy: Proxy::new(access, Crowd::new(bounds.requests_per_sandbox)),
            running,
            names,
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// When there is nothing to say, and the connection has to break.
    pub(crate) async fn answer(
        &self,
        mut request: Request<ClientBody>,
        client: &Client,
    ) -> Result<Response<AnswerBody>, Broken> {
        let routed = match routing::route(&self.names, &mut request) {
            Ok(routed) => routed,
            Err(error) => return Ok(answer::text(StatusCode::BAD_REQUEST, error.to_string())),
        };
        let (id, port) = match routed.destination {
            Destination::Control => return Ok(self.control(request, client).await),
            Destination::SignedFile => return self.data_plane.signed(request, client).await,
            Destination::Sandbox { id, port } => (id, port),
        };
        match port {
            ENVD_PORT => {
                let called = self.data_plane.call(&id, Service::Envd, request, client);
                return called.await;
            }
            CODE_PORT => {
                let called = self.data_plane.call(&id, Service::Code, request, client);
                return called.await;
            }
            _ => {}
        }
        let Some(sandbox) = self.reached(&id, request.headers()).await else {
            return Ok(Failure::SandboxNotFound.answer(&id, request.headers()));
        };
        match port {
            // The host's own way in where it cannot enter a sandbox's network.
            PASSAGE_PORT => Ok(Failure::PortClosed(port).answer(&id, request.headers())),
            port => {
                let authority = routed.authority;
                let visit = crate::proxy::Visit {
                    sandbox,
                    port,
                    authority,
                    client,
                };
                self.proxy.pass(visit, request).await
            }
        }
    }

    /// The sandbox `id`, woken up if it is paused and who asks may do that.
    async fn reached(&self, id: &str, asked: &HeaderMap) -> Option<Arc<Running>> {
        let asleep = match self.running.find(id)? {
            Found::Awake(sandbox) => return Some(sandbox),
            Found::Asleep(asleep) => asleep,
        };
        // Who may not come in is told so by the proxy, and wakes nobody up.
        if check_traffic_token(&asleep.sandbox, asked).is_ok() && !asleep.wake().await {
            return None;
        }
        Some(asleep.sandbox)
    }

    async fn control(&self, request: Request<ClientBody>, client: &Client) -> Response<AnswerBody> {
        let mut request =
            request.map(|body| axum::body::Body::new(Talkative::new(body, CONTROL_SILENCE)));
        request.extensions_mut().insert(ConnectInfo(client.peer));
        match self.control.call(request).await {
            Ok(response) => response.map(streamed),
            Err(never) => match never {},
        }
    }
}
