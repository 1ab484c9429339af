//! One connection: dial, handshake, request.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::GuestError;
use crate::gateway::{GuestStream, Way};

/// Body of a request.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// Longest response head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Most of a body that is read at once, from a guest that sends much.
const BUFFER_BYTES_MAX: usize = 256 * 1024;

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
    pub(crate) async fn open(way: &Way) -> Result<Self, GuestError> {
        let stream = timeout(DIAL_BOUND, way.open())
            .await
            .map_err(|_| GuestError::Timeout {
                what: "accept a connection",
                bound: DIAL_BOUND,
            })?
            .map_err(GuestError::Unreachable)?;
        match stream {
            GuestStream::Socket(socket) => Self::on(socket).await,
            GuestStream::Other(stream) => Self::on(stream).await,
        }
    }

    async fn on(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self, GuestError> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES_MAX)
            .max_header_size(HEAD_BYTES_MAX)
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
