//! One connection to a port of a sandbox.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::sync::Arc;
use std::time::Duration;

use atoll_control::running::Running;
use atoll_siphon::nearby;
use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::inner_tls;
use super::upstream::Upstream;
use crate::body::{AnswerBody, BodyError};

/// Body of a request on its way to a service.
pub(super) type RequestBody = AnswerBody;

/// Longest head of an answer, and what is read ahead of a body.
const HEAD_BYTES_MAX: usize = 128 * 1024;
/// Most headers of an answer.
const HEADERS_MAX: usize = 256;
/// How often a port that refuses is tried, for it may be about to open, and
/// the first pause between two tries; each is twice as long as the one before.
const DIALS_MAX: u32 = 5;
const DIAL_PAUSE: Duration = Duration::from_millis(10);
/// How long all of that may take, with waiting for one's turn.
const DIAL_BOUND: Duration = Duration::from_secs(15);
/// How long a service may take for the handshake of TLS.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum OpenError {
    /// Nobody listens.
    Closed,
    /// In words that follow the name of the service.
    Other(String),
}

/// Why a request got no answer.
pub(super) enum SendError {
    /// Nothing of it went out.
    Unsent(Box<Request<RequestBody>>),
    /// The service may have seen it.
    Lost(hyper::Error),
}

/// A connection that ends when it is dropped.
pub(super) struct Connection {
    sender: http1::SendRequest<RequestBody>,
    _driver: Driver,
}

/// The task that moves a connection's bytes.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    /// Dials a port, with TLS where the sandbox says so. `host` is what the
    /// service may be called.
    pub(super) async fn open(
        upstream: &Upstream,
        sandbox: &Arc<Running>,
        port: u16,
        host: Option<&HeaderValue>,
    ) -> Result<Self, OpenError> {
        let stream = timeout(DIAL_BOUND, dial(upstream, sandbox, port))
            .await
            .map_err(|_| OpenError::Other("does not accept connections".to_owned()))??;
        if !sandbox.ingress.https_ports.contains(&port) {
            return Self::over(stream).await;
        }
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        let stream = match timeout(HANDSHAKE_BOUND, inner_tls::connect(stream, host)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) => return Err(OpenError::Other("does not speak TLS".to_owned())),
            Err(_) => return Err(OpenError::Other("does not finish TLS".to_owned())),
        };
        Self::over(stream).await
    }

    async fn over<S>(stream: S) -> Result<Self, OpenError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| OpenError::Other(format!("cannot be spoken to: {error}")))?;
        let driver = Driver(tokio::spawn(async move {
            // Whoever waits for the answer sees the same error.
            let _ = connection.with_upgrades().await;
        }));
        Ok(Self {
            sender,
            _driver: driver,
        })
    }

    /// Sends a request and waits, without a bound, for the head of the answer.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut failure) => Err(match failure.take_message() {
                Some(request) => SendError::Unsent(Box::new(request)),
                None => SendError::Lost(failure.into_error()),
            }),
        }
    }

    /// Whether it can carry another request.
    pub(super) fn is_idle(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }
}

/// A body that passes.
pub(super) fn body<B>(body: B) -> RequestBody
where
    B: Body<Data = Bytes, Error = BodyError> + Send + 'static,
{
    body.boxed_unsync()
}

/// No body.
pub(super) fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

async fn dial(
    upstream: &Upstream,
    sandbox: &Arc<Running>,
    port: u16,
) -> Result<TcpStream, OpenError> {
    let mut pause = DIAL_PAUSE;
    for attempt in 1..=DIALS_MAX {
        let turn = upstream.turn_to_dial().await;
        let error = match dial_once(sandbox, port, turn).await.and_then(into_tokio) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match error.kind() {
            io::ErrorKind::ConnectionRefused if attempt < DIALS_MAX => {
                sleep(pause).await;
                pause *= 2;
            }
            io::ErrorKind::ConnectionRefused => return Err(OpenError::Closed),
            _ => return Err(OpenError::Other(format!("cannot be reached: {error}"))),
        }
    }
    Err(OpenError::Closed)
}

/// Dials on a thread of its own: the pool for blocking work has an end, and
/// others need it.
async fn dial_once(
    sandbox: &Arc<Running>,
    port: u16,
    turn: Option<OwnedSemaphorePermit>,
) -> io::Result<StdTcpStream> {
    let target = Arc::clone(sandbox.live.sandbox());
    let (dialed, done) = oneshot::channel();
    std::thread::Builder::new()
        .name("dial-port".to_owned())
        .spawn(move || {
            let stream = target.dial(port);
            // Only now: a sandbox whose ports do not answer keeps no more
            // threads than it has turns, however few wait for them.
            drop(turn);
            // Nobody waits any more when it cannot be handed over.
            let _ = dialed.send(stream);
        })?;
    done.await.map_err(io::Error::other)?
}

fn into_tokio(stream: StdTcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    nearby::without_pacing(&stream);
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}
