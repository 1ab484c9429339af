//! HTTP on one connection.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Version, header};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::client_body::ClientBody;
use super::pulse::{InFlight, Protocol, Pulse};
use super::stream::Observed;
use super::{Bounds, HANDSHAKE_BOUND, Stage, Stay};
use crate::App;
use crate::body::{AnswerBody, BodyError, Broken};

/// Longest head of a request, with its target and all headers.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most of a body that is read at once, by whoever sends much.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Most headers of a request.
const HEADERS_MAX: usize = 128;
/// Requests at once on one connection of HTTP/2.
const STREAMS_MAX: u32 = 1024;
/// Bytes of bodies that a client of HTTP/2 may send ahead of us.
const WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of answers that wait in one stream of HTTP/2.
const SEND_BYTES_MAX: usize = 256 * 1024;
/// How often a client of HTTP/2 is asked whether it is still there, and how
/// long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_BOUND: Duration = Duration::from_secs(20);

/// An answer in the making.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Counted>, Broken>> + Send>>;

/// Who asks, as far as the connection tells.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// Its address.
    pub(crate) peer: SocketAddr,
    /// How it got here.
    pub(crate) scheme: Scheme,
    pulse: Arc<Pulse>,
    stay: Arc<Stay>,
}

impl Client {
    /// HTTP ends here: what follows on this connection are others' bytes, for
    /// as long as this is held.
    pub(crate) fn becomes_a_tunnel(&self) {
        self.pulse.becomes_a_tunnel();
    }

    /// What is on its way must not look as if it were all.
    pub(crate) fn break_off(&self) {
        self.pulse.break_off();
    }

    /// Waits until the server lets nobody stay.
    pub(crate) async fn has_to_go(&self) {
        self.stay.later_than(Stage::Stopping).await;
    }
}

/// One connection that was let in.
pub(super) struct Visit {
    pub(super) app: Arc<App>,
    pub(super) bounds: Arc<Bounds>,
    pub(super) stay: Arc<Stay>,
    pub(super) peer: SocketAddr,
}

impl Visit {
    pub(super) async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let pulse = Pulse::new();
        let stream = Observed::new(stream, Arc::clone(&pulse), self.bounds.stall);
        let Some(tls) = tls else {
            return self.http1(stream, pulse, Scheme::HTTP).await;
        };
        let stream = match timeout(HANDSHAKE_BOUND, tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!("no TLS with {}: {error}", self.peer);
                return;
            }
            Err(_) => return,
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            self.http2(stream, pulse).await;
        } else {
            self.http1(stream, pulse, Scheme::HTTPS).await;
        }
    }

    async fn http1<S>(self, stream: S, pulse: Arc<Pulse>, scheme: Scheme)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        pulse.speaks(Protocol::Http1);
        let mut http = http1::Builder::new();
        http.max_buf_size(BUFFER_BYTES_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .timer(TokioTimer::new())
            // The pulse knows when a head has begun.
            .header_read_timeout(None);
        let service = service_fn(self.service(&pulse, scheme));
        let connection = http
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let mut stage = Stage::Serving;
        loop {
            tokio::select! {
                served = &mut connection => return seen(served, self.peer),
                () = pulse.overdue(&self.bounds) => return,
                later = self.stay.later_than(stage) => {
                    stage = later;
                    match stage {
                        Stage::Serving => {}
                        Stage::Stopping => connection.as_mut().graceful_shutdown(),
                        Stage::Stopped => return pulse.break_all(),
                    }
                }
            }
        }
    }

    async fn http2<S>(self, stream: S, pulse: Arc<Pulse>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        pulse.speaks(Protocol::Http2);
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_BOUND);
        let service = service_fn(self.service(&pulse, Scheme::HTTPS));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut stage = Stage::Serving;
        loop {
            tokio::select! {
                served = &mut connection => return seen(served, self.peer),
                () = pulse.overdue(&self.bounds) => return,
                later = self.stay.later_than(stage) => {
                    stage = later;
                    match stage {
                        Stage::Serving => {}
                        Stage::Stopping => connection.as_mut().graceful_shutdown(),
                        Stage::Stopped => return pulse.break_all(),
                    }
                }
            }
        }
    }

    /// Answers requests of this connection.
    fn service(
        &self,
        pulse: &Arc<Pulse>,
        scheme: Scheme,
    ) -> impl Fn(Request<Incoming>) -> Answering + use<> {
        let app = Arc::clone(&self.app);
        let client = Client {
            peer: self.peer,
            scheme,
            pulse: Arc::clone(pulse),
            stay: Arc::clone(&self.stay),
        };
        move |request| {
            let (app, client) = (Arc::clone(&app), client.clone());
            let in_flight = client.pulse.request();
            let version = request.version();
            let (head, body) = request.into_parts();
            let (body, fate) = ClientBody::new(body);
            let request = Request::from_parts(head, body);
            Box::pin(async move {
                match app.answer(request, &client).await {
                    Ok(mut response) => {
                        if fate.is_left_unread() && version < Version::HTTP_2 {
                            let close = HeaderValue::from_static("close");
                            response.headers_mut().insert(header::CONNECTION, close);
                        }
                        Ok(response.map(|body| Counted { body, in_flight }))
                    }
                    Err(broken) => {
                        in_flight.pulse().break_off();
                        Err(broken)
                    }
                }
            })
        }
    }
}

fn seen(served: Result<(), hyper::Error>, peer: SocketAddr) {
    if let Err(error) = served {
        tracing::debug!("connection of {peer}: {error}");
    }
}

/// The body of an answer. Its request is in flight as long as this exists.
pub(super) struct Counted {
    body: AnswerBody,
    in_flight: InFlight,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Err(_))) = polled {
            self.in_flight.pulse().break_off();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
