//! Idle connections, kept for a moment: dialing costs more than a small call.
//!
//! A connection enters when its last answer was read to its end, and leaves
//! for the next request, after [`IDLE_BOUND`], or with the client. One on
//! which the guest said anything more is closed by its driver and never used
//! again, so an answer can only ever meet the request it follows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::answer::Answer;
use crate::client::full;
use crate::connection::{Connection, RequestBody, SendFailure};
use crate::error::GuestError;
use crate::gateway::Way;

/// Most idle connections of one client.
const IDLE_MAX: usize = 4;

/// How long a connection may be idle.
const IDLE_BOUND: Duration = Duration::from_secs(5);

/// A request, and whether the guest may see it twice.
pub(crate) enum Outgoing {
    /// It changes nothing: sent again when an idle connection turns out to be dead.
    Repeatable(Request<Bytes>),
    /// Sent again only when not a byte of it went out.
    Once(Request<RequestBody>),
}

/// Dials and keeps what is idle.
pub(crate) struct Pool {
    way: Way,
    idle: Mutex<Idle>,
    /// Whoever stands before the guest said so.
    knows_no_lanes: AtomicBool,
}

#[derive(Default)]
struct Idle {
    /// Oldest first.
    connections: Vec<(Connection, Instant)>,
    reaper: Option<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn new(way: Way) -> Self {
        Self {
            way,
            idle: Mutex::default(),
            knows_no_lanes: AtomicBool::new(false),
        }
    }

    /// Lanes are not asked for again.
    pub(crate) fn forget_lanes(&self) {
        self.knows_no_lanes.store(true, Ordering::Relaxed);
    }

    /// Whether nobody said yet that there are no lanes.
    pub(crate) fn may_have_lanes(&self) -> bool {
        !self.knows_no_lanes.load(Ordering::Relaxed)
    }

    /// How the guest is reached.
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Sends a request and waits, without a bound, for the head of the
    /// response. The connection comes back when the answer was read.
    pub(crate) async fn send(self: &Arc<Self>, outgoing: Outgoing) -> Result<Answer, GuestError> {
        let (request, again) = match outgoing {
            Outgoing::Repeatable(request) => (request.clone().map(full), Some(request)),
            Outgoing::Once(request) => (request, None),
        };
        let Some(mut reused) = self.take() else {
            return self.send_fresh(request).await;
        };
        match reused.send(request).await {
            Ok(response) => Ok(Answer::reusable(response, reused, self)),
            Err(SendFailure::Unsent(request)) => self.send_fresh(*request).await,
            Err(SendFailure::Lost(error)) => match again {
                // A guest that talks nonsense would do so again.
                Some(request) if !error.is_parse() => self.send_fresh(request.map(full)).await,
                Some(_) | None => Err(error.into()),
            },
        }
    }

    async fn send_fresh(
        self: &Arc<Self>,
        request: Request<RequestBody>,
    ) -> Result<Answer, GuestError> {
        let (response, connection) = send_on(self.open().await?, request).await?;
        Ok(Answer::reusable(response, connection, self))
    }

    /// Sends a request on a connection that nothing else will ever use.
    pub(crate) async fn send_alone(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Answer, GuestError> {
        let (response, connection) = send_on(self.open().await?, request).await?;
        Ok(Answer::alone(response, connection))
    }

    async fn open(&self) -> Result<Connection, GuestError> {
        Connection::open(&self.way).await
    }

    fn take(&self) -> Option<Connection> {
        let mut idle = self.lock();
        while let Some((connection, since)) = idle.connections.pop() {
            if connection.is_idle() && since.elapsed() < IDLE_BOUND {
                return Some(connection);
            }
        }
        None
    }

    /// Takes a connection back whose last answer was read to its end.
    pub(crate) fn put(self: &Arc<Self>, connection: Connection) {
        let mut idle = self.lock();
        if idle.connections.len() >= IDLE_MAX {
            // The oldest is the likeliest to be dead.
            idle.connections.remove(0);
        }
        idle.connections.push((connection, Instant::now()));
        if idle.reaper.as_ref().is_none_or(JoinHandle::is_finished) {
            idle.reaper = Some(tokio::spawn(reap(Arc::downgrade(self))));
        }
    }

    /// Closes everything that is idle.
    pub(crate) fn clear(&self) {
        self.lock().connections.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send_on(
    mut connection: Connection,
    request: Request<RequestBody>,
) -> Result<(http::Response<hyper::body::Incoming>, Connection), GuestError> {
    match connection.send(request).await {
        Ok(response) => Ok((response, connection)),
        Err(SendFailure::Unsent(_)) => Err(GuestError::Disconnected(
            "it closed before anything was sent".to_owned(),
        )),
        Err(SendFailure::Lost(error)) => Err(error.into()),
    }
}

/// Closes connections that nobody used in time, until none are left.
async fn reap(pool: Weak<Pool>) {
    loop {
        let next = {
            let Some(pool) = pool.upgrade() else { return };
            let mut idle = pool.lock();
            let now = Instant::now();
            idle.connections
                .retain(|(_, since)| now < *since + IDLE_BOUND);
            let Some((_, since)) = idle.connections.first() else {
                // Under the lock: whoever puts next starts another.
                idle.reaper = None;
                return;
            };
            *since + IDLE_BOUND
        };
        sleep_until(next).await;
    }
}
