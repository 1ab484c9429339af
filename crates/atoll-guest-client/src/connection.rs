//! One connection: dial, handshake, request.

use std::fmt;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::sync::Arc;
use std::time::Duration;

use atoll_protocol::ENVD_PORT;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::GuestError;

/// Opens a byte stream to a port of the sandbox. May block for a moment.
pub type Dialer = Arc<dyn Fn(u16) -> io::Result<StdTcpStream> + Send + Sync>;

/// Body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// Longest response head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Most headers of a response.
pub(crate) const HEADERS_MAX: usize = 64;

/// How long a dial may take.
const DIAL_BOUND: Duration = Duration::from_secs(10);

/// A connection that ends when it is dropped.
pub(crate) struct Connection {
    sender: http1::SendRequest<RequestBody>,
    _driver: Driver,
}

impl fmt::Debug for Connection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Connection")
    }
}

/// The task that moves a connection's bytes.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a request got no response.
pub(crate) enum SendFailure {
    /// Not a byte of it went out, so it may go out elsewhere.
    Unsent(Box<Request<RequestBody>>),
    /// The guest may have seen it.
    Lost(hyper::Error),
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
            let _ = connection.with_upgrades().await;
        }));
        Ok(Self {
            sender,
            _driver: driver,
        })
    }

    /// Sends a request and waits, without a bound, for the head of the response.
    pub(crate) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendFailure> {
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut failure) => Err(match failure.take_message() {
                Some(request) => SendFailure::Unsent(Box::new(request)),
                None => SendFailure::Lost(failure.into_error()),
            }),
        }
    }

    /// Whether it can carry another request: the last exchange is over on
    /// both sides and not a byte came after it.
    pub(crate) fn is_idle(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }
}

fn into_tokio(stream: StdTcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}
