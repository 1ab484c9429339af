//! What one sandbox is given: dials at once, and connections that wait for the
//! next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use atoll_control::running::Running;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::connection::Connection;

/// Dials of one sandbox at once.
const DIALS_MAX: usize = 32;
/// Connections to one port that wait for the next request.
const IDLE_MAX: usize = 64;
/// How long they wait. Services close what is idle, the most impatient ones
/// after two seconds, and a request that meets the end of its connection is lost.
const IDLE_BOUND: Duration = Duration::from_secs(1);

/// All sandboxes that were visited.
#[derive(Default)]
pub(super) struct Upstreams {
    by_id: Mutex<HashMap<String, Arc<Upstream>>>,
}

impl Upstreams {
    /// What `sandbox` is given. One that took the place of another of the same
    /// name, after a pause, starts anew.
    pub(super) fn of(&self, sandbox: &Arc<Running>) -> Arc<Upstream> {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_id.get(sandbox.id.as_str())
            && std::ptr::eq(known.sandbox.as_ptr(), Arc::as_ptr(sandbox))
        {
            return Arc::clone(known);
        }
        by_id.retain(|_, upstream| upstream.sandbox.strong_count() > 0);
        let fresh = Arc::new(Upstream::new(sandbox));
        by_id.insert(sandbox.id.as_str().to_owned(), Arc::clone(&fresh));
        fresh
    }
}

/// One sandbox, as the proxy uses it.
pub(super) struct Upstream {
    sandbox: Weak<Running>,
    dials: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    by_port: HashMap<u16, Vec<(Connection, Instant)>>,
    is_watched: bool,
}

impl Upstream {
    fn new(sandbox: &Arc<Running>) -> Self {
        Self {
            sandbox: Arc::downgrade(sandbox),
            dials: Arc::new(Semaphore::new(DIALS_MAX)),
            idle: Mutex::default(),
        }
    }

    /// Waits for one's turn to dial.
    pub(super) async fn turn_to_dial(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        Arc::clone(&self.dials).acquire_owned().await.ok()
    }

    /// A connection to `port` that waits for a request.
    pub(super) fn take(&self, port: u16) -> Option<Connection> {
        let mut idle = self.lock();
        let waiting = idle.by_port.get_mut(&port)?;
        while let Some((connection, since)) = waiting.pop() {
            if connection.is_idle() && since.elapsed() < IDLE_BOUND {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn put(self: &Arc<Self>, port: u16, connection: Connection) {
        let mut idle = self.lock();
        let waiting = idle.by_port.entry(port).or_default();
        if waiting.len() >= IDLE_MAX {
            // The oldest is the likeliest to be closed by its service.
            waiting.remove(0);
        }
        waiting.push((connection, Instant::now()));
        if !idle.is_watched {
            idle.is_watched = true;
            tokio::spawn(close_idle(Arc::downgrade(self)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what waited too long, until nothing waits.
async fn close_idle(upstream: Weak<Upstream>) {
    loop {
        sleep(IDLE_BOUND).await;
        let Some(upstream) = upstream.upgrade() else {
            return;
        };
        let mut idle = upstream.lock();
        idle.by_port.retain(|_, waiting| {
            waiting.retain(|(_, since)| since.elapsed() < IDLE_BOUND);
            !waiting.is_empty()
        });
        if idle.by_port.is_empty() {
            // Under the lock: whoever puts next starts another.
            idle.is_watched = false;
            return;
        }
    }
}
