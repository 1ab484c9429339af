//! Who is connected.
//!
//! Everybody inside the sandbox reaches this port. So of those who have not
//! shown that they hold the token only so many are served, and a new one
//! takes the place of the oldest: descriptors stay for those who do.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_siphon::nearby;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::sleep;

/// Longest wait for the head of a request, the time since the one before
/// included. Answers and bodies may take any time.
const HEAD_BOUND: Duration = Duration::from_secs(30);

/// Most that is read before somebody looks at it, the longest head too.
const BUFFER_BYTES_MAX: usize = 256 * 1024;

/// Most connections of strangers.
const STRANGERS_MAX: u64 = 256;

/// Part of all descriptors that strangers may have.
const STRANGERS_SHARE: u64 = 4;

/// Pause after the kernel could not hand over a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who may call at all.
#[derive(Debug, Clone, Copy)]
pub(super) enum Callers {
    /// Whoever reaches the address.
    Anybody,
    /// Whoever has this address.
    Only(Ipv4Addr),
}

impl Callers {
    fn admit(self, peer: IpAddr) -> bool {
        match self {
            Self::Anybody => true,
            Self::Only(address) => peer == IpAddr::V4(address),
        }
    }
}

/// Serves who may call.
pub(super) async fn serve(listener: TcpListener, app: Router, callers: Callers) -> io::Result<()> {
    let strangers = Arc::new(Crowd::new(strangers_max()));
    let app = TowerToHyperService::new(app);
    loop {
        match listener.accept().await {
            Ok((_, peer)) if !callers.admit(peer.ip()) => {}
            Ok((stream, _)) => {
                // Without it the first event waits for an acknowledgement.
                let _ = stream.set_nodelay(true);
                // Only the host calls.
                nearby::without_pacing(&stream);
                nearby::with_a_short_queue(&stream);
                tokio::spawn(converse(stream, app.clone(), Standing::new(&strangers)));
                // Who came has its turn before it can be the oldest.
                tokio::task::yield_now().await;
            }
            Err(error) if is_of_the_peer(&error) => {}
            Err(_) => {
                // Probably there are no descriptors: somebody has to go.
                strangers.turn_away_the_oldest();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

fn strangers_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = (descriptors / STRANGERS_SHARE).clamp(1, STRANGERS_MAX);
    usize::try_from(most).unwrap_or(1)
}

async fn converse(stream: TcpStream, app: TowerToHyperService<Router>, standing: Standing) {
    let asking = standing.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(asking.clone());
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_BOUND)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        // How a connection ends is for its client to tell.
        _ = connection => {}
        () = standing.0.turned_away() => {}
    }
}

/// Whether whoever is at the other end has shown that it holds the token.
#[derive(Debug, Clone)]
pub(crate) struct Standing(Arc<Place>);

impl Standing {
    fn new(strangers: &Arc<Crowd>) -> Self {
        Self(Arc::new(strangers.enter()))
    }

    /// It has: nothing takes its connection any more.
    pub(crate) fn trust(&self) {
        self.0.leave();
    }
}

/// So many at once; a newcomer takes the place of the oldest. That way those
/// who wait cannot keep out one who is quick.
#[derive(Debug)]
pub(crate) struct Crowd {
    most: usize,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    next: u64,
    by_age: BTreeMap<u64, Arc<Notify>>,
}

impl Crowd {
    /// Nobody, yet.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            present: Mutex::default(),
        }
    }

    /// Takes a place.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        let told = Arc::new(Notify::new());
        let number = self.with(|present| {
            let number = present.next;
            present.next += 1;
            present.by_age.insert(number, Arc::clone(&told));
            if present.by_age.len() > self.most {
                present.turn_away_the_oldest();
            }
            number
        });
        Place {
            crowd: Arc::clone(self),
            number,
            told,
        }
    }

    fn turn_away_the_oldest(&self) {
        self.with(Present::turn_away_the_oldest);
    }

    fn with<T>(&self, work: impl FnOnce(&mut Present) -> T) -> T {
        work(&mut self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Present {
    fn turn_away_the_oldest(&mut self) {
        if let Some((_, told)) = self.by_age.pop_first() {
            told.notify_one();
        }
    }
}

/// A place in a crowd, until it is given up.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    told: Arc<Notify>,
}

impl Place {
    /// Waits until somebody else has the place.
    pub(crate) async fn turned_away(&self) {
        self.told.notified().await;
    }

    fn leave(&self) {
        self.crowd
            .with(|present| present.by_age.remove(&self.number));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(crowd: &Crowd) -> Vec<u64> {
        crowd.with(|present| present.by_age.keys().copied().collect())
    }

    #[tokio::test]
    async fn a_newcomer_takes_the_place_of_the_oldest() {
        let crowd = Arc::new(Crowd::new(2));
        let (first, second) = (crowd.enter(), crowd.enter());
        second.leave();
        let third = crowd.enter();
        assert_eq!(present(&crowd), [0, 2]);
        let fourth = crowd.enter();
        assert_eq!(present(&crowd), [2, 3]);
        first.turned_away().await;
        drop(third);
        assert_eq!(present(&crowd), [3]);
        drop((first, second, fourth));
        assert_eq!(present(&crowd), [0_u64; 0]);
    }
}
