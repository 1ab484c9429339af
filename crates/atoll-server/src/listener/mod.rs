//! Connections: who may have how many, for how long, and how they end.
//!
//! | file | owns |
//! |---|---|
//! | `admission.rs` | how many connections there are, and from where |
//! | `pulse.rs` | what happens on a connection, and when it is overdue |
//! | `stream.rs` | its bytes: seen by the pulse, and closed in one of two ways |
//! | `connection.rs` | HTTP on it |
//! | `client_body.rs` | bodies of requests that nobody reads |
//!
//! A connection ends **politely**, with everything that was answered
//! delivered, or it is **broken off**, so that its client sees an error and
//! not an end. Whatever was cut short is broken off.

mod admission;
mod client_body;
mod connection;
mod pulse;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::tls::Certificates;
use admission::{Admission, Place};

pub(crate) use client_body::ClientBody;
pub(crate) use connection::Client;
pub(crate) use stream::Observed;

/// Pause after the host had no room for another connection.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// How long a client may take for the handshake of TLS.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(10);

/// A socket that clients connect to.
#[derive(Debug)]
pub enum Entrance {
    /// HTTP/1.1 in the clear.
    Plain(TcpListener),
    /// HTTP/1.1 and HTTP/2 in TLS.
    Tls {
        /// The socket.
        listener: TcpListener,
        /// What it shows.
        certificates: Arc<Certificates>,
    },
}

/// What clients are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Connections at once from one address, unless it is this host's.
    pub connections_per_peer: usize,
    /// Requests at once for one sandbox, to its guest and to its ports each.
    pub requests_per_sandbox: usize,
    /// How long a request's head may take, from its first byte.
    pub head: Duration,
    /// How long a new connection may say nothing.
    pub first: Duration,
    /// How long a connection may say nothing after a request. Longer than
    /// clients keep theirs: whoever closes first cannot be surprised.
    pub idle: Duration,
    /// How long a client may take nothing of what it is sent.
    pub stall: Duration,
    /// How long requests may take to finish after the server was told to stop.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_per_peer: 4096,
            requests_per_sandbox: 2048,
            head: Duration::from_secs(20),
            first: Duration::from_secs(60),
            idle: Duration::from_secs(650),
            stall: Duration::from_secs(660),
            grace: Duration::from_secs(3),
        }
    }
}

/// How far the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// No new requests.
    Stopping,
    /// No requests.
    Stopped,
}

/// Answers on all entrances until `stop` comes; then lets requests finish for
/// as long as [`Bounds::grace`], and breaks off those that do not.
///
/// # Errors
/// When a socket cannot be accepted from any more.
pub(crate) async fn listen(
    entrances: Vec<Entrance>,
    bounds: Bounds,
    app: Arc<crate::App>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let bounds = Arc::new(bounds);
    let (stage, seen) = watch::channel(Stage::Serving);
    // Every connection holds one end; there are none left when all are dropped.
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    let admission = Admission::new(bounds.connections, bounds.connections_per_peer);
    let mut accepting = JoinSet::new();
    for entrance in entrances {
        let hall = Hall {
            bounds: Arc::clone(&bounds),
            app: Arc::clone(&app),
            admission: Arc::clone(&admission),
            stage: seen.clone(),
            alive: alive.clone(),
        };
        accepting.spawn(hall.accept(entrance));
    }
    drop(alive);
    let outcome = tokio::select! {
        () = stop => Ok(()),
        Some(ended) = accepting.join_next() => match ended {
            Ok(error) => Err(error),
            Err(panicked) => Err(io::Error::other(panicked)),
        },
    };
    accepting.shutdown().await;
    stage.send_replace(Stage::Stopping);
    if timeout(bounds.grace, all_gone.recv()).await.is_err() {
        stage.send_replace(Stage::Stopped);
        all_gone.recv().await;
    }
    outcome
}

/// What a connection holds for as long as it is there, in whatever form.
#[derive(Debug)]
struct Stay {
    stage: watch::Receiver<Stage>,
    _place: Place,
    _alive: mpsc::Sender<()>,
}

impl Stay {
    /// Waits until the server is further than `stage`.
    async fn later_than(&self, stage: Stage) -> Stage {
        let mut seen = self.stage.clone();
        // Who could say more is gone with the server.
        let further = seen.wait_for(|now| *now > stage).await;
        further.map_or(Stage::Stopped, |now| *now)
    }
}

/// What connections of one entrance have in common.
struct Hall {
    bounds: Arc<Bounds>,
    app: Arc<crate::App>,
    admission: Arc<Admission>,
    stage: watch::Receiver<Stage>,
    alive: mpsc::Sender<()>,
}

impl Hall {
    /// Accepts until that fails for good.
    async fn accept(self, entrance: Entrance) -> io::Error {
        let (listener, tls) = match entrance {
            Entrance::Plain(listener) => (listener, None),
            Entrance::Tls {
                listener,
                certificates,
            } => (listener, Some(certificates)),
        };
        let renewing = async {
            match &tls {
                Some(certificates) => certificates.keep_fresh().await,
                None => std::future::pending().await,
            }
        };
        let acceptor = tls.as_ref().map(|shown| TlsAcceptor::from(shown.server()));
        tokio::select! {
            () = renewing => io::Error::other("certificates are not renewed any more"),
            error = self.accept_from(&listener, acceptor) => error,
        }
    }

    async fn accept_from(&self, listener: &TcpListener, tls: Option<TlsAcceptor>) -> io::Error {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer, tls.clone()),
                Err(error) if is_the_clients(&error) => {}
                Err(error) if is_for_want_of_room(&error) => {
                    tracing::warn!("no room for another connection: {error}");
                    sleep(NO_ROOM_PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>) {
        let Some(place) = self.admission.enter(peer.ip()) else {
            stream::turn_away(&stream);
            return;
        };
        if let Err(error) = stream::prepare(&stream, peer.ip()) {
            tracing::debug!("a connection was gone before it was used: {error}");
            return;
        }
        let visit = connection::Visit {
            app: Arc::clone(&self.app),
            bounds: Arc::clone(&self.bounds),
            stay: Arc::new(Stay {
                stage: self.stage.clone(),
                _place: place,
                _alive: self.alive.clone(),
            }),
            peer,
        };
        tokio::spawn(visit.serve(stream, tls));
    }
}

/// A client that left before it was let in.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Descriptors or memory that somebody may give back.
fn is_for_want_of_room(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let wants = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error
        .raw_os_error()
        .is_some_and(|number| wants.map(Errno::raw_os_error).contains(&number))
}
