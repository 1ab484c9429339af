//! Calls to one guest.

use std::fmt;
use std::io;
use std::time::Duration;

use atoll_protocol::{ACCESS_TOKEN_HEADER, InitRequest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use buffa::Message;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::{Answer, Connection, Dialer, RequestBody};
use crate::error::GuestError;

/// First wait between two dials of a guest that is coming up.
const RETRY_FIRST: Duration = Duration::from_millis(1);

/// Longest wait between two dials.
const RETRY_LAST: Duration = Duration::from_millis(20);

/// How long a followed command may be silent unless told otherwise. The
/// guest is asked for a sign of life three times as often.
const SILENCE_BOUND: Duration = Duration::from_secs(90);

/// A client of one guest. Cheap to clone; every call has a connection of its own.
#[derive(Clone)]
pub struct GuestClient {
    dial: Dialer,
    token: String,
    silence: Duration,
}

impl fmt::Debug for GuestClient {
    /// Without the secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GuestClient")
            .field("silence", &self.silence)
            .finish_non_exhaustive()
    }
}

impl GuestClient {
    /// A client that reaches its guest through `dial` and presents `token`.
    #[must_use]
    pub fn new(dial: Dialer, token: String) -> Self {
        Self {
            dial,
            token,
            silence: SILENCE_BOUND,
        }
    }

    /// Changes how long a followed command, an upload or a download may go
    /// without a sign of life before the guest is given up. Default: 90 s.
    #[must_use]
    pub fn with_silence_bound(mut self, bound: Duration) -> Self {
        self.silence = bound;
        self
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// Waits until the guest answers, for at most `bound`.
    ///
    /// # Errors
    /// The last failure when the bound passes.
    pub async fn wait_ready(&self, bound: Duration) -> Result<(), GuestError> {
        let deadline = Instant::now() + bound;
        let mut pause = RETRY_FIRST;
        let mut last = GuestError::Timeout {
            what: "become ready",
            bound,
        };
        loop {
            match timeout_at(deadline, self.health()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => last = error,
                Err(_) => return Err(last),
            }
            if Instant::now() + pause >= deadline {
                return Err(last);
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    async fn health(&self) -> Result<(), GuestError> {
        let request = Request::get("/health")
            .header(header::HOST, "guest")
            .body(empty())
            .map_err(bad_request)?;
        let status = Connection::open(&self.dial)
            .await?
            .ask(request)
            .await?
            .response
            .status();
        if status == StatusCode::NO_CONTENT {
            Ok(())
        } else {
            Err(GuestError::Protocol(format!("/health answered {status}")))
        }
    }

    /// Tells the guest its settings and, the first time, its secret.
    ///
    /// # Errors
    /// When the guest has another secret already or cannot be asked.
    pub async fn init(&self, init: &InitRequest) -> Result<(), GuestError> {
        let body = serde_json::to_vec(init).map_err(|error| GuestError::Source(error.into()))?;
        let request = self.request(Method::POST, "/init", None, "application/json", full(body))?;
        self.ask(request)
            .await?
            .success()
            .await?
            .whole_body()
            .await?;
        Ok(())
    }

    /// A unary call.
    pub(crate) async fn call<M: Message>(
        &self,
        method: &str,
        message: &M,
        headers: &[(&'static str, String)],
        patience: Patience,
    ) -> Result<(), GuestError> {
        let mut request = self.request(
            Method::POST,
            method,
            None,
            "application/proto",
            full(message.encode_to_vec()),
        )?;
        add_headers(&mut request, headers)?;
        let answer = match patience {
            Patience::Bounded => self.ask(request).await?,
            Patience::WithTheCommand => Connection::open(&self.dial).await?.send(request).await?,
        };
        answer.success().await?.whole_body().await?;
        Ok(())
    }

    pub(crate) async fn ask(&self, request: Request<RequestBody>) -> Result<Answer, GuestError> {
        Connection::open(&self.dial).await?.ask(request).await
    }

    pub(crate) async fn connect(&self) -> Result<Connection, GuestError> {
        Connection::open(&self.dial).await
    }

    /// A request with our token and, if any, a user.
    pub(crate) fn request(
        &self,
        method: Method,
        target: &str,
        user: Option<&str>,
        content_type: &'static str,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, GuestError> {
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, "guest")
            .header(ACCESS_TOKEN_HEADER, &self.token)
            .header("connect-protocol-version", "1")
            .header(header::CONTENT_TYPE, content_type);
        if let Some(user) = user {
            request = request.header(
                header::AUTHORIZATION,
                format!("Basic {}", STANDARD.encode(format!("{user}:"))),
            );
        }
        request.body(body).map_err(bad_request)
    }
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// The guest can answer at once.
    Bounded,
    /// The answer may take as long as the command lives.
    WithTheCommand,
}

pub(crate) fn add_headers(
    request: &mut Request<RequestBody>,
    headers: &[(&'static str, String)],
) -> Result<(), GuestError> {
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).map_err(bad_request)?;
        request
            .headers_mut()
            .insert(HeaderName::from_static(name), value);
    }
    Ok(())
}

/// A request that cannot be put on the wire, such as one with a broken token.
fn bad_request(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> GuestError {
    GuestError::Source(io::Error::new(io::ErrorKind::InvalidInput, error))
}

pub(crate) fn empty() -> RequestBody {
    Empty::<Bytes>::new()
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
