//! Large files, which pass by HTTP: see [`atoll_protocol::lane`]. A client's
//! connection is tied to one of the guest, and the kernel moves the bytes.
//!
//! Neither side is trusted. Of a file as many bytes pass as its guest said, of
//! a verdict no more than one; what breaks on one side breaks on the other. A
//! lane ends with the right by which it was opened, as every answer does.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use atoll_control::running::Running;
use atoll_guest_client::{ForwardOptions, ForwardedLane, ForwardedUser, OpenLane, Route, Service};
use atoll_protocol::lane::{
    KNOWN_HEADER, LENGTH_HEADER, PROTOCOL, TEXT_BYTES_MAX, VERDICT_HEAD_BYTES, Verdict,
};
use bytes::Bytes;
use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderValue, Response, StatusCode};
use hyper::body::Body as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::lifeline::{Tie, while_allowed};
use super::{ANSWER_SILENCE, pass_back, trouble};
use crate::answer;
use crate::body::{AnswerBody, Broken, whole};
use crate::crowd::InCrowd;
use crate::listener::{Client, ClientBody, Observed};
use crate::proxy::{switch_to, wanted_protocol};
use crate::silence::Life;
use crate::splice::{Channel, SpliceError};

/// How long a client may take to let go of HTTP.
const SWITCH_BOUND: Duration = Duration::from_secs(30);

/// Said where there is no lane.
const NO_LANE: &str = "this path is for a connection of HTTP/1.1 in the clear that goes on with \
    `Upgrade: atoll-file`, which did not get here\nhint: use `/files`";

/// The wish for a lane, which was admitted.
pub(super) struct Opening<'o> {
    pub(super) sandbox: &'o Arc<Running>,
    pub(super) client: &'o Client,
    pub(super) user: ForwardedUser,
    pub(super) tie: Tie,
    pub(super) in_crowd: InCrowd,
}

impl Opening<'_> {
    /// Agrees, once the guest does.
    ///
    /// # Errors
    /// When the right to it ends meanwhile.
    pub(super) async fn answer(
        self,
        mut head: Parts,
        body: &ClientBody,
    ) -> Result<Response<AnswerBody>, Broken> {
        let Some(to_client) = wish(&mut head, body, self.client) else {
            return Ok(known(upgrade_required()));
        };
        let asked = head.headers.clone();
        let options = ForwardOptions {
            service: Service::Envd,
            silence: Some(ANSWER_SILENCE),
            user: self.user,
        };
        let opened = self.sandbox.live.guest().forward_lane(head, options);
        match while_allowed(&self.tie, opened).await? {
            Ok(ForwardedLane::Open(lane)) => {
                let agreement = agreement(lane.length);
                let tunnel = Tunnel {
                    to_client,
                    lane,
                    client: self.client.clone(),
                    tie: self.tie,
                    in_crowd: self.in_crowd,
                };
                tokio::spawn(tunnel.run());
                Ok(known(agreement))
            }
            Ok(ForwardedLane::Plain(response)) => {
                let route = Route::Download;
                Ok(known(pass_back(response, route, self.tie, self.in_crowd)))
            }
            Err(error) => {
                let called = (Service::Envd, Route::Download);
                let told = trouble::answer(error, called, self.sandbox, &asked);
                while_allowed(&self.tie, told).await?.map(known)
            }
        }
    }
}

/// What becomes of the client's connection, when it asks for a lane as it has
/// to: in the clear, for nothing else, and with nothing before it.
fn wish(head: &mut Parts, body: &ClientBody, client: &Client) -> Option<OnUpgrade> {
    let wanted = wanted_protocol(&head.headers, head.version)?;
    let is_lane = wanted.as_bytes() == PROTOCOL.as_bytes();
    if !is_lane || client.scheme != Scheme::HTTP || !body.is_end_stream() {
        return None;
    }
    head.extensions.remove()
}

/// An answer of somebody who knows lanes.
fn known(mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    let value = HeaderValue::from_static("known");
    response.headers_mut().insert(KNOWN_HEADER, value);
    response
}

fn upgrade_required() -> Response<AnswerBody> {
    let mut response = answer::error(StatusCode::UPGRADE_REQUIRED, NO_LANE);
    switch_to(response.headers_mut(), &HeaderValue::from_static(PROTOCOL));
    response
}

fn agreement(length: Option<u64>) -> Response<AnswerBody> {
    let mut response = Response::new(whole(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    switch_to(headers, &HeaderValue::from_static(PROTOCOL));
    if let Some(length) = length {
        headers.insert(LENGTH_HEADER, HeaderValue::from(length));
    }
    response
}

/// Both ends, and what must live as long.
struct Tunnel {
    to_client: OnUpgrade,
    lane: OpenLane,
    client: Client,
    tie: Tie,
    in_crowd: InCrowd,
}

impl Tunnel {
    /// Moves bytes until there is a reason to stop.
    async fn run(self) {
        let Self {
            to_client,
            lane,
            client,
            tie,
            in_crowd: _in_crowd,
        } = self;
        let Ok(Ok(switched)) = timeout(SWITCH_BOUND, to_client).await else {
            return;
        };
        let Ok(parts) = switched.downcast::<TokioIo<Observed>>() else {
            return client.break_off();
        };
        let (mut connection, early) = (parts.io.into_inner(), parts.read_buf);
        let (life, silence) = (Life::new(), connection.stall_bound());
        let moved = async {
            match lane.length {
                Some(length) => send(&connection, &early, lane, length, &life).await,
                None => receive(&mut connection, &early, lane, &life).await,
            }
        };
        let ended = tokio::select! {
            biased;
            broken = tie.broken() => Err(broken),
            () = client.has_to_go() => Err(Broken("the server stops")),
            moved = moved => moved,
            () = life.silence(silence) => Err(Broken("nothing moves any more")),
        };
        match ended {
            // Bounded: what the client has not taken by then is the kernel's.
            Ok(()) => drop(connection.shutdown().await),
            Err(broken) => {
                tracing::debug!("lane of {}: {broken}", client.peer);
                client.break_off();
            }
        }
    }
}

/// A file of the guest to the client, all of it or nothing that looks so.
async fn send(
    client: &Observed,
    early: &Bytes,
    lane: OpenLane,
    length: u64,
    life: &Life,
) -> Result<(), Broken> {
    if !early.is_empty() {
        return Err(SPOKE);
    }
    let (guest, mut begun) = (lane.stream, lane.early);
    begun.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    let left = length - begun.len() as u64;
    let channel = Channel::new().map_err(|_| Broken("there is no room for a pipe"))?;
    let passed = async {
        write_all(client.socket(), &begun).await?;
        let passed = channel.pass(&guest, client.socket(), left, life).await;
        passed.map_err(|error| match error {
            SpliceError::Source(_) => CUT_SHORT,
            SpliceError::Target(_) => GONE,
        })
    };
    tokio::select! {
        biased;
        passed = passed => if passed? == left { Ok(()) } else { Err(CUT_SHORT) },
        () = spoken(client.socket()) => Err(SPOKE),
    }
}

/// A file of the client to the guest, and the guest's verdict back.
async fn receive(
    client: &mut Observed,
    early: &Bytes,
    lane: OpenLane,
    life: &Life,
) -> Result<(), Broken> {
    let (mut guest, begun) = (lane.stream, lane.early);
    let channel = Channel::new().map_err(|_| Broken("there is no room for a pipe"))?;
    let (reading, mut writing) = guest.split();
    let verdict = read_verdict(Cursor::new(begun).chain(reading));
    let feeding = async {
        let fed = match write_all(writing.as_ref(), early).await {
            Ok(()) => {
                let (from, to) = (client.socket(), writing.as_ref());
                let passed = channel.pass(from, to, Channel::UNTIL_ITS_END, life);
                passed.await.map(drop)
            }
            Err(_) => Ok(()),
        };
        match fed {
            // The client has said all; the guest finds out whether that was a file.
            Ok(()) => drop(writing.shutdown().await),
            // It may have said why.
            Err(SpliceError::Target(_)) => {}
            Err(SpliceError::Source(_)) => return GONE,
        }
        std::future::pending().await
    };
    let verdict = tokio::select! {
        biased;
        verdict = verdict => verdict?,
        broken = feeding => return Err(broken),
    };
    client.write_all(&verdict).await.map_err(|_| GONE)
}

const GONE: Broken = Broken("the client is gone");
const SPOKE: Broken = Broken("the client left, or spoke where it has nothing to say");
const CUT_SHORT: Broken = Broken("the file broke off");
const NO_VERDICT: Broken = Broken("the guest gave no verdict");

/// A whole verdict as it came, which is not longer than one may be.
async fn read_verdict(mut from: impl AsyncRead + Unpin) -> Result<Vec<u8>, Broken> {
    let mut head = [0; VERDICT_HEAD_BYTES];
    from.read_exact(&mut head).await.map_err(|_| NO_VERDICT)?;
    let (_, length) = Verdict::decode_head(head);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > TEXT_BYTES_MAX {
        return Err(NO_VERDICT);
    }
    let mut verdict = vec![0; VERDICT_HEAD_BYTES + length];
    verdict[..VERDICT_HEAD_BYTES].copy_from_slice(&head);
    let text = &mut verdict[VERDICT_HEAD_BYTES..];
    from.read_exact(text).await.map_err(|_| NO_VERDICT)?;
    Ok(verdict)
}

/// Writes to a socket that others look at as well.
async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> Result<(), Broken> {
    while !bytes.is_empty() {
        to.writable().await.map_err(|_| GONE)?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(GONE),
        }
    }
    Ok(())
}

/// Waits until a client that has nothing to say says something, or leaves.
async fn spoken(client: &TcpStream) {
    while client.readable().await.is_ok() {
        match client.try_read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}
