//! `/mcp`: the tools for MCP clients in HTTP.
//!
//! A request needs a key, as every route of the control plane does. Tools reach
//! sandboxes through this server's own API with the same key, so that whatever
//! is asked of callers is asked of tools too; only the end of a session goes
//! straight to the life cycle, for its key may be over by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::{Client, Endpoint, SandboxState};
use atoll_control::identity::{Caller, Role};
use atoll_control::lifecycle::OperationError;
use atoll_tools::mcp::{HttpService, Principal, SessionBounds};
use atoll_tools::{
    ErrorCode, Listed, Place, Preview, Promise, ServedWorkplace, ToolError, Wanted, Workplace,
};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;

use crate::control_plane::{Asker, ControlPlane, admit, authenticate};

/// How long the end of all sessions may take when the server stops.
const CLOSE_BOUND: Duration = Duration::from_secs(10);

/// Where and how tools work.
pub struct McpSettings {
    /// Under which this server reaches itself.
    pub url: String,
    /// Whether ports of sandboxes are reached with TLS.
    pub is_encrypted: bool,
    /// The template of sandboxes for which none is named.
    pub template: Arc<dyn Fn() -> String + Send + Sync>,
    /// Pages of these origins may call, besides programs.
    pub origins: Vec<String>,
}

/// The tools for MCP clients in HTTP.
pub struct Mcp {
    plane: Arc<ControlPlane>,
    settings: McpSettings,
    service: HttpService,
}

impl Mcp {
    /// The tools of this server.
    #[must_use]
    pub fn new(plane: Arc<ControlPlane>, settings: McpSettings) -> Arc<Self> {
        let service = HttpService::new(&settings.origins, SessionBounds::default());
        Arc::new(Self {
            plane,
            settings,
            service,
        })
    }

    /// `router` with its route.
    pub fn beside(self: &Arc<Self>, router: Router) -> Router {
        let guarded = get(answer)
            .post(answer)
            .delete(answer)
            .route_layer(from_fn(|request, next| admit(Role::Agent, request, next)))
            .route_layer(from_fn_with_state(Arc::clone(&self.plane), authenticate));
        router.route("/mcp", guarded.with_state(Arc::clone(self)))
    }

    /// Ends sessions that are over. Never returns.
    pub async fn keep_tidy(&self) {
        let is_valid = |principal: Principal| async move {
            let known = self.plane.keys.authenticate(principal.key()).await;
            // A database that does not answer ends nobody's session.
            !matches!(
                known,
                Err(atoll_control::identity::AuthenticationError::Refused(_))
            )
        };
        self.service.keep_tidy(is_valid).await;
    }

    /// Ends all streams.
    pub fn stop(&self) {
        self.service.stop();
    }

    /// Ends all sessions, and their sandboxes with them.
    pub async fn close(&self) {
        if tokio::time::timeout(CLOSE_BOUND, self.service.close())
            .await
            .is_err()
        {
            tracing::warn!("sandboxes of MCP sessions are left to their timeouts");
        }
    }

    fn workplace(&self, asker: &Asker) -> Result<Arc<dyn Workplace>, ToolError> {
        let unusable = |error: &dyn std::error::Error| {
            tracing::error!("tools cannot reach this server: {error}");
            ToolError::new(
                ErrorCode::Internal,
                "the server cannot reach itself; its log says why",
                "tell the operator",
            )
        };
        let endpoint = Endpoint::new(&self.settings.url, &asker.key);
        let endpoint = endpoint.map_err(|error| unusable(&error))?;
        let client = Client::new(endpoint).map_err(|error| unusable(&error))?;
        let template = (self.settings.template)();
        let caller = &asker.caller;
        let served = ServedWorkplace::new(client, template, self.settings.is_encrypted)
            .on_behalf_of(caller.agent_id.clone(), caller.task_id.clone());
        Ok(Arc::new(OwnWorkplace {
            served,
            plane: Arc::clone(&self.plane),
            caller: asker.caller.clone(),
        }))
    }
}

async fn answer(State(mcp): State<Arc<Mcp>>, asker: Asker, request: Request) -> Response {
    let caller = &asker.caller;
    let principal = Principal::new(caller.tenant.to_string(), asker.key.clone())
        .on_behalf_of(caller.agent_id.clone(), caller.task_id.clone());
    let workplace = || mcp.workplace(&asker);
    let answered = mcp.service.answer(&principal, workplace, request).await;
    answered.map(axum::body::Body::new)
}

/// Sandboxes of this server for one session.
struct OwnWorkplace {
    served: ServedWorkplace,
    plane: Arc<ControlPlane>,
    caller: Caller,
}

impl Workplace for OwnWorkplace {
    fn create(&self, wanted: Wanted) -> Promise<'_, Result<Place, ToolError>> {
        self.served.create(wanted)
    }

    fn find<'a>(&'a self, id: &'a str) -> Promise<'a, Result<Place, ToolError>> {
        self.served.find(id)
    }

    fn look<'a>(&'a self, id: &'a str) -> Promise<'a, Result<SandboxState, ToolError>> {
        self.served.look(id)
    }

    fn list(&self) -> Promise<'_, Result<Vec<Listed>, ToolError>> {
        self.served.list()
    }

    fn kill<'a>(&'a self, id: &'a str) -> Promise<'a, Result<(), ToolError>> {
        Box::pin(async move {
            let killed = self.plane.lifecycle.kill(&self.caller, id).await;
            if matches!(killed, Ok(()) | Err(OperationError::NotFound)) {
                self.served.forget(id);
            }
            match killed {
                Ok(()) => Ok(()),
                Err(OperationError::NotFound) => Err(ToolError::no_sandbox(id)),
                Err(error) => Err(ToolError::new(
                    ErrorCode::Internal,
                    error.to_string(),
                    "try again",
                )),
            }
        })
    }

    fn keep<'a>(&'a self, id: &'a str, busy: Duration) -> Promise<'a, ()> {
        self.served.keep(id, busy)
    }

    fn preview<'a>(
        &'a self,
        place: &'a Place,
        port: u16,
    ) -> Promise<'a, Result<Preview, ToolError>> {
        if self.plane.domain.is_some() {
            return self.served.preview(place, port);
        }
        Box::pin(async move {
            let headers: BTreeMap<&str, String> = [
                ("e2b-sandbox-id", place.id.clone()),
                ("e2b-sandbox-port", port.to_string()),
            ]
            .into();
            Err(ToolError::new(
                ErrorCode::Unsupported,
                "this server has no domain, so ports of sandboxes have no names",
                format!(
                    "call the server with the headers {headers:?}, or start it with `--domain`"
                ),
            ))
        })
    }
}
