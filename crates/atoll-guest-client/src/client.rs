//! Calls to one guest.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_protocol::connect::encode_frame;
use atoll_protocol::lane::KNOWN_HEADER;
use atoll_protocol::{ACCESS_TOKEN_HEADER, InitRequest, KEEPALIVE_HEADER};
use buffa::Message;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use tokio::time::{sleep, timeout, timeout_at};

use crate::answer::{ANSWER_BOUND, Answer};
use crate::connection::RequestBody;
use crate::error::GuestError;
use crate::gateway::{Dialer, Gateway, Lanes, Way};
use crate::messages::{STREAM_TYPE, UNARY_TYPE};
use crate::moment::from_now;
use crate::pool::{Outgoing, Pool};
use crate::user::authorization;

/// First wait between two dials of a guest that is coming up.
const RETRY_FIRST: Duration = Duration::from_millis(1);

/// Longest wait between two dials.
const RETRY_LAST: Duration = Duration::from_millis(20);

/// How long a followed command may be silent unless told otherwise. The
/// guest is asked for a sign of life three times as often.
const SILENCE_BOUND: Duration = Duration::from_secs(90);

/// A client of one guest. Cheap to clone; clones share their idle connections.
#[derive(Clone)]
pub struct GuestClient {
    pool: Arc<Pool>,
    token: String,
    silence: Duration,
    lanes: Lanes,
    narrow: Option<Narrow>,
}

/// Narrower bounds than the usual ones, where many guests answer into the
/// memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Narrow {
    /// Longest line of an execution. A longer result is left out and counted:
    /// [`crate::CodeRun::left_out`].
    pub line_bytes: usize,
    /// Longest list of a directory.
    pub list_bytes: usize,
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
        Self::on(Way::Straight(dial), token)
    }

    /// A client that reaches its guest through a server, and presents the
    /// `token` that the server gave out for it.
    #[must_use]
    pub fn through(gateway: Gateway, token: String) -> Self {
        Self::on(Way::Through(gateway), token)
    }

    fn on(way: Way, token: String) -> Self {
        Self {
            pool: Arc::new(Pool::new(way)),
            token,
            silence: SILENCE_BOUND,
            lanes: Lanes::default(),
            narrow: None,
        }
    }

    /// Changes how long a followed command, an upload or a download may go
    /// without a sign of life before the guest is given up. Default: 90 s.
    #[must_use]
    pub fn with_silence_bound(mut self, bound: Duration) -> Self {
        self.silence = bound;
        self
    }

    /// Closes connections that wait for the next call. To be called when the
    /// sandbox was restored: its guest knows nothing of them.
    pub fn close_idle(&self) {
        self.pool.clear();
    }

    /// Changes whether large files may leave HTTP on their way. Default:
    /// where that is possible.
    #[must_use]
    pub fn with_lanes(mut self, lanes: Lanes) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets narrower bounds for what code shows and for lists.
    #[must_use]
    pub fn with_bounds(mut self, narrow: Narrow) -> Self {
        self.narrow = Some(narrow);
        self
    }

    pub(crate) fn narrow(&self) -> Option<Narrow> {
        self.narrow
    }

    /// Where to ask for a lane, if at all.
    pub(crate) fn lane_path(&self) -> Option<&'static str> {
        match self.lanes {
            Lanes::WherePossible => self
                .pool
                .may_have_lanes()
                .then(|| self.pool.way().lane_path()),
            Lanes::Never => None,
        }
    }

    /// Whether an answer to the wish for a lane that gives none is meant. One
    /// of somebody who does not know lanes is not, and is remembered.
    pub(crate) fn is_meant(&self, answer: &Answer) -> bool {
        match self.pool.way() {
            Way::Straight(_) => true,
            Way::Through(_) => {
                let status = answer.response.status();
                if status == StatusCode::UPGRADE_REQUIRED {
                    self.pool.forget_lanes();
                    return false;
                }
                let is_known = answer.headers().contains_key(KNOWN_HEADER);
                let is_unknown_path = matches!(
                    status,
                    StatusCode::NOT_FOUND
                        | StatusCode::METHOD_NOT_ALLOWED
                        | StatusCode::NOT_IMPLEMENTED
                );
                if !is_known && is_unknown_path {
                    self.pool.forget_lanes();
                }
                is_known
            }
        }
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// Waits until the guest answers, for at most `bound`.
    ///
    /// # Errors
    /// The last failure when the bound passes.
    pub async fn wait_ready(&self, bound: Duration) -> Result<(), GuestError> {
        let deadline = from_now(bound);
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
            if from_now(pause) >= deadline {
                return Err(last);
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_LAST);
        }
    }

    async fn health(&self) -> Result<(), GuestError> {
        let mut request = Request::get("/health")
            .body(Bytes::new())
            .map_err(bad_request)?;
        *request.headers_mut() = self.pool.way().headers();
        let status = self
            .ask(Outgoing::Repeatable(request))
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
        self.ask(Outgoing::Once(request))
            .await?
            .success()
            .await?
            .whole_body()
            .await?;
        Ok(())
    }

    /// A unary call that changes something and whose answer says nothing.
    pub(crate) async fn call<M: Message>(
        &self,
        method: &str,
        message: &M,
        headers: &[(&'static str, String)],
        patience: Patience,
    ) -> Result<(), GuestError> {
        let mut request = self.unary(method, message, None)?.map(full);
        add_headers(request.headers_mut(), headers)?;
        let outgoing = Outgoing::Once(request);
        let answer = match patience {
            Patience::Bounded => self.ask(outgoing).await?,
            Patience::WithTheCommand => self.send(outgoing).await?,
        };
        answer.success().await?.whole_body().await?;
        Ok(())
    }

    /// Opens a stream on a connection of its own and asks for signs of life
    /// three times as often as they are needed.
    pub(crate) async fn stream<M: Message>(
        &self,
        method: &str,
        message: &M,
        user: Option<&str>,
        mut headers: Vec<(&'static str, String)>,
    ) -> Result<Answer, GuestError> {
        let body = full(encode_frame(0, &message.encode_to_vec())?);
        let mut request = self.request(Method::POST, method, user, STREAM_TYPE, body)?;
        let keepalive = (self.silence.as_secs() / 3).max(1);
        headers.push((KEEPALIVE_HEADER, keepalive.to_string()));
        add_headers(request.headers_mut(), &headers)?;
        in_time(self.pool.send_alone(request)).await
    }

    /// A unary request with a message.
    pub(crate) fn unary<M: Message>(
        &self,
        method: &str,
        message: &M,
        user: Option<&str>,
    ) -> Result<Request<Bytes>, GuestError> {
        let body = Bytes::from(message.encode_to_vec());
        self.request(Method::POST, method, user, UNARY_TYPE, body)
    }

    /// Sends a request that the guest can answer at once.
    pub(crate) async fn ask(&self, outgoing: Outgoing) -> Result<Answer, GuestError> {
        in_time(self.send(outgoing)).await
    }

    /// Sends a request and waits, without a bound, for the head of the response.
    pub(crate) async fn send(&self, outgoing: Outgoing) -> Result<Answer, GuestError> {
        self.pool.send(outgoing).await
    }

    /// As [`Self::send`], on a connection that nothing else will use.
    pub(crate) async fn send_alone(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Answer, GuestError> {
        self.pool.send_alone(request).await
    }

    pub(crate) fn token(&self) -> Result<HeaderValue, GuestError> {
        let mut token = HeaderValue::from_str(&self.token).map_err(bad_request)?;
        token.set_sensitive(true);
        Ok(token)
    }

    /// A request with our token and, if any, a user.
    pub(crate) fn request<B>(
        &self,
        method: Method,
        target: &str,
        user: Option<&str>,
        content_type: &'static str,
        body: B,
    ) -> Result<Request<B>, GuestError> {
        let mut headers = self.pool.way().headers();
        headers.insert(ACCESS_TOKEN_HEADER, self.token()?);
        headers.insert("connect-protocol-version", HeaderValue::from_static("1"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(user) = user {
            headers.insert(header::AUTHORIZATION, authorization(user)?);
        }
        let request = Request::builder().method(method).uri(target).body(body);
        let mut request = request.map_err(bad_request)?;
        *request.headers_mut() = headers;
        Ok(request)
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

pub(crate) async fn in_time(
    answer: impl Future<Output = Result<Answer, GuestError>>,
) -> Result<Answer, GuestError> {
    timeout(ANSWER_BOUND, answer)
        .await
        .map_err(|_| GuestError::Timeout {
            what: "answer",
            bound: ANSWER_BOUND,
        })?
}

fn add_headers(to: &mut HeaderMap, headers: &[(&'static str, String)]) -> Result<(), GuestError> {
    for (name, value) in headers {
        let value = HeaderValue::from_str(value).map_err(bad_request)?;
        to.insert(HeaderName::from_static(name), value);
    }
    Ok(())
}

/// A request that cannot be put on the wire, such as one with a broken token.
pub(crate) fn bad_request(
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> GuestError {
    GuestError::Source(io::Error::new(io::ErrorKind::InvalidInput, error))
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> RequestBody {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}
