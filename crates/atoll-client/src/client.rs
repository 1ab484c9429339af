//! Making, finding and ending sandboxes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use atoll_guest_client::{Gateway, GuestClient, Lanes};
use atoll_protocol::rest::{
    LogEntries, Pool, Sandbox as Answered, SandboxDetail, SandboxLogEntry, SandboxMetric,
};
use atoll_protocol::{CODE_PORT, ENVD_PORT};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::json;

use crate::connector::{Connector, connector, way};
use crate::endpoint::Endpoint;
use crate::error::ClientError;
use crate::list::{ListOptions, SandboxList, encoded};
use crate::options::{CreateOptions, LogOptions, NetworkOptions, Span, whole_seconds};
use crate::rest::Rest;
use crate::sandbox::Sandbox;

const SANDBOX_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";
const TRAFFIC_HEADER: &str = "e2b-traffic-access-token";

/// A server, and the right to use it. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    rest: Rest,
    connector: Connector,
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client")
            .field("endpoint", self.inner.rest.endpoint())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at `endpoint`. Nothing is asked yet.
    ///
    /// # Errors
    /// When the certificates that this machine trusts cannot be read.
    pub fn new(endpoint: Endpoint) -> Result<Self, ClientError> {
        let connector = connector().map_err(|error| ClientError::Unreachable {
            server: endpoint.api.authority.to_string(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                rest: Rest::new(endpoint, connector.clone()),
                connector,
            }),
        })
    }

    pub(crate) fn rest(&self) -> &Rest {
        &self.inner.rest
    }

    /// Makes a sandbox and waits until it takes commands.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is no such template,
    /// [`ClientError::RateLimited`] when the server has no room, and others.
    pub async fn create(&self, options: &CreateOptions) -> Result<Sandbox, ClientError> {
        let mut headers = HeaderMap::new();
        let said = [
            ("idempotency-key", &options.idempotency_key),
            ("atoll-agent-id", &options.agent),
            ("atoll-task-id", &options.task),
        ];
        for (name, text) in said {
            if let Some(text) = text {
                headers.insert(name, value(text)?);
            }
        }
        let reply = self
            .rest()
            .tell(Method::POST, "/v2/sandboxes", &options.body(), headers)
            .await?;
        self.opened(reply.json()?)
    }

    /// Finds a sandbox again, wakes it up if it is paused, and lets it live for
    /// at least `timeout` more.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn connect(
        &self,
        sandbox: &str,
        timeout: Option<Duration>,
    ) -> Result<Sandbox, ClientError> {
        let body = match timeout {
            Some(timeout) => json!({ "timeout": whole_seconds(timeout) }),
            None => json!({}),
        };
        let target = format!("/v2/sandboxes/{}/connect", encoded(sandbox));
        let reply = self
            .rest()
            .tell(Method::POST, &target, &body, HeaderMap::new())
            .await?;
        self.opened(reply.json()?)
    }

    pub(crate) fn opened(&self, answered: Answered) -> Result<Sandbox, ClientError> {
        let guest = self.guest(&answered, ENVD_PORT)?;
        let code = self.guest(&answered, CODE_PORT)?;
        Ok(Sandbox::new(self.clone(), answered, guest, code))
    }

    /// A port of a sandbox's guest.
    fn guest(&self, answered: &Answered, port: u16) -> Result<GuestClient, ClientError> {
        let endpoint = self.rest().endpoint();
        let address = endpoint.guest_of(&answered.sandbox_id, port, answered.domain.as_deref())?;
        let mut headers = HeaderMap::new();
        headers.insert(SANDBOX_HEADER, value(&answered.sandbox_id)?);
        headers.insert(PORT_HEADER, HeaderValue::from(port));
        if let Some(token) = &answered.traffic_access_token
            && port == CODE_PORT
        {
            headers.insert(TRAFFIC_HEADER, value(token.reveal())?);
        }
        let uri = address
            .uri("/")
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        let gateway = Gateway {
            connect: way(&self.inner.connector, uri),
            host: value(address.authority.as_str())?,
            headers,
        };
        let lanes = if address.scheme == Scheme::HTTP {
            Lanes::WherePossible
        } else {
            // Encryption takes what lanes are for.
            Lanes::Never
        };
        let token = answered.envd_access_token.reveal().to_owned();
        Ok(GuestClient::through(gateway, token).with_lanes(lanes))
    }

    /// Lists sandboxes, the newest first.
    #[must_use]
    pub fn list(&self, options: &ListOptions) -> SandboxList {
        SandboxList::new(self.clone(), options)
    }

    /// What the server knows about a sandbox.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn get(&self, sandbox: &str) -> Result<SandboxDetail, ClientError> {
        let target = target(sandbox, "");
        self.rest().ask(Method::GET, &target).await?.json()
    }

    /// Ends a sandbox.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn kill(&self, sandbox: &str) -> Result<(), ClientError> {
        let target = target(sandbox, "");
        self.rest().ask(Method::DELETE, &target).await.map(drop)
    }

    /// Lets a sandbox end after `timeout` from now, sooner or later than it would.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn set_timeout(&self, sandbox: &str, timeout: Duration) -> Result<(), ClientError> {
        let body = json!({ "timeout": whole_seconds(timeout) });
        self.change(Method::POST, &target(sandbox, "/timeout"), &body)
            .await
    }

    /// Lets a sandbox hold still, with its processes and their memory, until
    /// somebody connects to it. Whoever is there is sent away.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none; [`ClientError::Api`] with
    /// status 409 when it is paused already.
    pub async fn pause(&self, sandbox: &str) -> Result<(), ClientError> {
        self.change(Method::POST, &target(sandbox, "/pause"), &json!({}))
            .await
    }

    /// Puts `network` in place of what a sandbox could reach so far. Who may
    /// reach it stays as it is.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn set_network(
        &self,
        sandbox: &str,
        network: &NetworkOptions,
    ) -> Result<(), ClientError> {
        self.change(Method::PUT, &target(sandbox, "/network"), &json!(network))
            .await
    }

    /// What a sandbox used, sample by sample.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn metrics(
        &self,
        sandbox: &str,
        span: Span,
    ) -> Result<Vec<SandboxMetric>, ClientError> {
        let seconds = |moment: SystemTime| since_1970(moment).as_secs();
        let mut target = target(sandbox, "/metrics?");
        if let Some(start) = span.start {
            target.push_str(&format!("start={}&", seconds(start)));
        }
        if let Some(end) = span.end {
            target.push_str(&format!("end={}", seconds(end)));
        }
        self.rest().ask(Method::GET, &target).await?.json()
    }

    /// What happened to a sandbox, oldest first.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when there is none.
    pub async fn logs(
        &self,
        sandbox: &str,
        options: LogOptions,
    ) -> Result<Vec<SandboxLogEntry>, ClientError> {
        let mut target = format!("/v2/sandboxes/{}/logs?direction=forward", encoded(sandbox));
        if let Some(start) = options.start {
            target.push_str(&format!("&cursor={}", since_1970(start).as_millis()));
        }
        if let Some(limit) = options.limit {
            target.push_str(&format!("&limit={limit}"));
        }
        let entries: LogEntries = self.rest().ask(Method::GET, &target).await?.json()?;
        Ok(entries.logs)
    }

    /// The warm pools of the server.
    ///
    /// # Errors
    /// When the key is not one of the server's own tenant, and others.
    pub async fn pools(&self) -> Result<Vec<Pool>, ClientError> {
        self.rest().ask(Method::GET, "/pools").await?.json()
    }

    async fn change(
        &self,
        method: Method,
        target: &str,
        body: &serde_json::Value,
    ) -> Result<(), ClientError> {
        let nothing = HeaderMap::new();
        self.rest()
            .tell(method, target, body, nothing)
            .await
            .map(drop)
    }
}

/// A path of a sandbox. Its name is not trusted to be one.
pub(crate) fn target(sandbox: &str, rest: &str) -> String {
    format!("/sandboxes/{}{rest}", encoded(sandbox))
}

fn since_1970(moment: SystemTime) -> Duration {
    moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

fn value(text: &str) -> Result<HeaderValue, ClientError> {
    HeaderValue::from_str(text).map_err(|error| ClientError::Protocol(error.to_string()))
}
