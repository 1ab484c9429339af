//! What follows when client and service agree on another protocol: bytes,
//! both ways, until one of them or the sandbox ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_control::identity::SandboxEnd;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::time::timeout;

use super::connection::Connection;
use super::{SILENCE_BOUND, hop};
use crate::body::{AnswerBody, whole};
use crate::crowd::InCrowd;
use crate::listener::Client;
use crate::silence::Life;

/// Bytes read at once, in each direction.
const BUFFER_BYTES: usize = 32 * 1024;

/// HTTP/2 in the clear: another way to ask for the same port, whose requests
/// nobody would look at.
const HTTP2: &[u8] = b"h2c";

/// The protocol that a request with these headers wants to switch to, if it may.
pub(crate) fn wanted(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
    let mut protocols = headers.get_all(header::UPGRADE).iter();
    let protocol = protocols.next()?;
    let is_one = protocols.next().is_none() && !protocol.as_bytes().contains(&b',');
    let asks = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    let may = version == Version::HTTP_11
        && is_one
        && asks
        && !protocol.as_bytes().eq_ignore_ascii_case(HTTP2);
    may.then(|| protocol.clone())
}

/// Asks a service for it, or agrees to it.
pub(crate) fn ask(headers: &mut HeaderMap, protocol: &HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol.clone());
}

/// Whether a service agreed to what was asked, and to nothing else.
pub(super) fn is_agreed<B>(response: &Response<B>, wanted: &HeaderValue) -> bool {
    let mut protocols = response.headers().get_all(header::UPGRADE).iter();
    let is_same =
        |protocol: &HeaderValue| protocol.as_bytes().eq_ignore_ascii_case(wanted.as_bytes());
    protocols.next().is_some_and(is_same) && protocols.next().is_none()
}

/// What the client is told.
pub(super) fn agreement<B>(response: &Response<B>, protocol: &HeaderValue) -> Response<AnswerBody> {
    let mut headers = response.headers().clone();
    hop::remove(&mut headers);
    headers.remove(header::CONTENT_LENGTH);
    ask(&mut headers, protocol);
    let mut answer = Response::new(whole(""));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = headers;
    answer
}

/// Both ends, and what must live as long.
pub(super) struct Tunnel {
    pub(super) to_client: OnUpgrade,
    pub(super) to_service: OnUpgrade,
    pub(super) client: Client,
    pub(super) end: SandboxEnd,
    pub(super) in_use: InCrowd,
    pub(super) connection: Connection,
}

/// Moves bytes until there is a reason to stop.
pub(super) fn spawn(tunnel: Tunnel) {
    tunnel.client.becomes_a_tunnel();
    tokio::spawn(async move {
        let Tunnel {
            to_client,
            to_service,
            client,
            end,
            in_use: _in_use,
            connection: _connection,
        } = tunnel;
        let switched = async { tokio::try_join!(to_client, to_service) };
        let Ok(Ok((to_client, to_service))) = timeout(SILENCE_BOUND, switched).await else {
            return;
        };
        let life = Arc::new(Life::new());
        let mut to_client = Watched {
            stream: TokioIo::new(to_client),
            life: Arc::clone(&life),
        };
        let mut to_service = TokioIo::new(to_service);
        let copied = copy_bidirectional_with_sizes(
            &mut to_client,
            &mut to_service,
            BUFFER_BYTES,
            BUFFER_BYTES,
        );
        tokio::select! {
            // What broke at one end breaks at the other.
            copied = copied => if copied.is_err() { client.break_off() },
            () = end.reached() => client.break_off(),
            () = client.has_to_go() => client.break_off(),
            () = life.silence(SILENCE_BOUND) => {}
        }
    });
}

/// One end of a tunnel, past which all its bytes move.
struct Watched<S> {
    stream: S,
    life: Arc<Life>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.life.moved();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if polled.is_ready() {
            self.life.moved();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
