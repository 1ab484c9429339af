//! One connection per call: dial, handshake, request, response.

use std::fmt;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::sync::Arc;
use std::time::Duration;

use atoll_protocol::ENVD_PORT;
use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{GuestError, harmless};

/// Opens a byte stream to a port of the sandbox. May block for a moment.
pub type Dialer = Arc<dyn Fn(u16) -> io::Result<StdTcpStream> + Send + Sync>;

/// Body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// Longest response head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Most headers of a response.
const HEADERS_MAX: usize = 64;

/// Longest answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// How long a dial may take.
const DIAL_BOUND: Duration = Duration::from_secs(10);

/// How long the guest may take to answer what it can answer at once.
pub(crate) const ANSWER_BOUND: Duration = Duration::from_secs(30);

/// A connection that ends when it is dropped.
pub(crate) struct Connection {
    sender: http1::SendRequest<RequestBody>,
    driver: Driver,
}

/// The task that moves a connection's bytes.
pub(crate) struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Driver")
    }
}

/// A response whose body is still to come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    driver: Driver,
}

impl Connection {
    /// Dials the guest.
    pub(crate) async fn open(dial: &Dialer) -> Result<Self, GuestError> {
        let dial = Arc::clone(dial);
        let dialed = tokio::task::spawn_blocking(move || dial(ENVD_PORT));
        let stream = timeout(DIAL_BOUND, dialed)
            .await
            .map_err(|_| GuestError::Timeout {
                what: "accept a connection",
                bound: DIAL_BOUND,
            })?
            .map_err(io::Error::other)
            .flatten()
            .and_then(into_tokio)
            .map_err(GuestError::Unreachable)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        let driver = Driver(tokio::spawn(async move {
            // Whoever waits for the response sees the same error.
            let _ = connection.await;
        }));
        Ok(Self { sender, driver })
    }

    /// Sends a request and waits, without a bound, for the head of the response.
    pub(crate) async fn send(
        mut self,
        request: Request<RequestBody>,
    ) -> Result<Answer, GuestError> {
        let response = self.sender.send_request(request).await?;
        Ok(Answer {
            response,
            driver: self.driver,
        })
    }

    /// Sends a request that the guest can answer at once.
    pub(crate) async fn ask(self, request: Request<RequestBody>) -> Result<Answer, GuestError> {
        timeout(ANSWER_BOUND, self.send(request))
            .await
            .map_err(|_| GuestError::Timeout {
                what: "answer",
                bound: ANSWER_BOUND,
            })?
    }
}

fn into_tokio(stream: StdTcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// Body of an error answer: a number from plain routes, a name from RPC.
#[derive(Debug, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
}

impl Answer {
    /// Its body and what keeps it coming.
    pub(crate) fn into_body(self) -> (Incoming, Driver) {
        (self.response.into_body(), self.driver)
    }

    /// Passes a success on and turns everything else into an error.
    pub(crate) async fn success(self) -> Result<Self, GuestError> {
        let status = self.response.status();
        if status.is_success() {
            return Ok(self);
        }
        let body = self.whole_body().await?;
        let message = serde_json::from_slice::<ErrorBody>(&body)
            .map(|body| body.message)
            .unwrap_or_default();
        let message = harmless(if message.is_empty() {
            status.canonical_reason().unwrap_or("no reason given")
        } else {
            &message
        });
        if let Ok(error) = serde_json::from_slice::<atoll_protocol::connect::RpcError>(&body) {
            return Err(error.into());
        }
        Err(match status {
            StatusCode::UNAUTHORIZED => GuestError::Unauthorized(message),
            status => GuestError::Refused {
                status: status.as_u16(),
                message,
            },
        })
    }

    /// Its whole body, which must be short and come at once.
    pub(crate) async fn whole_body(self) -> Result<Bytes, GuestError> {
        let deadline = Instant::now() + ANSWER_BOUND;
        let (mut body, _driver) = self.into_body();
        let mut whole = BytesMut::new();
        loop {
            let frame =
                timeout_at(deadline, body.frame())
                    .await
                    .map_err(|_| GuestError::Timeout {
                        what: "finish its answer",
                        bound: ANSWER_BOUND,
                    })?;
            let Some(frame) = frame else {
                return Ok(whole.freeze());
            };
            let Ok(bytes) = frame?.into_data() else {
                continue;
            };
            if whole.len() + bytes.len() > ANSWER_BYTES_MAX {
                return Err(GuestError::TooLarge {
                    what: "an answer",
                    limit: ANSWER_BYTES_MAX,
                });
            }
            whole.extend_from_slice(&bytes);
        }
    }
}
