//! What happens on a connection, and when it has done nothing for too long.
//!
//! The stream tells of bytes, the service of requests. A head that has begun
//! must end; a connection without a request in flight must not stay for ever.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Bounds;

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Bytes between requests belong to the head of the next one.
    Http1,
    /// Bytes may be anything.
    Http2,
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Pulse {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Set when it is known.
    protocol: Option<Protocol>,
    in_flight: usize,
    /// Since when nothing is in flight.
    idle_since: Instant,
    /// Since when a head is on its way.
    head_since: Option<Instant>,
    has_served: bool,
    is_broken: bool,
    /// HTTP is over, bytes belong to others.
    is_tunnel: bool,
}

impl Pulse {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                protocol: None,
                in_flight: 0,
                idle_since: Instant::now(),
                head_since: None,
                has_served: false,
                is_broken: false,
                is_tunnel: false,
            }),
        })
    }

    pub(super) fn speaks(&self, protocol: Protocol) {
        let mut state = self.lock();
        state.protocol = Some(protocol);
        state.idle_since = Instant::now();
        state.head_since = None;
    }

    /// Bytes came.
    pub(super) fn heard(&self) {
        let mut state = self.lock();
        let is_head = state.protocol == Some(Protocol::Http1) && state.in_flight == 0;
        if is_head && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
    }

    /// A request came; it is over when what is returned is dropped.
    pub(super) fn request(self: &Arc<Self>) -> InFlight {
        let mut state = self.lock();
        state.in_flight += 1;
        state.head_since = None;
        state.has_served = true;
        InFlight(Arc::clone(self))
    }

    /// The connection is to be broken off. In HTTP/2 only a stream of it is,
    /// and others go on.
    pub(super) fn break_off(&self) {
        let mut state = self.lock();
        if state.protocol != Some(Protocol::Http2) {
            state.is_broken = true;
        }
    }

    /// The whole connection is to be broken off, whatever it speaks.
    pub(super) fn break_all(&self) {
        self.lock().is_broken = true;
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lock().is_broken
    }

    /// HTTP ends here.
    pub(super) fn becomes_a_tunnel(&self) {
        self.lock().is_tunnel = true;
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.lock().is_tunnel
    }

    /// Waits until the connection has done nothing for too long.
    pub(super) async fn overdue(&self, bounds: &Bounds) {
        loop {
            let patience = self.lock().patience(bounds);
            match patience {
                Some(left) if left.is_zero() => return,
                // What begins meanwhile has at least this long.
                Some(left) => sleep(left.min(bounds.head)).await,
                None => sleep(bounds.head).await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How long until it is overdue; `None` while it has something to do.
    fn patience(&self, bounds: &Bounds) -> Option<Duration> {
        if self.in_flight > 0 || self.is_tunnel {
            return None;
        }
        let idle_bound = if self.has_served {
            bounds.idle
        } else {
            bounds.first
        };
        let idle = idle_bound.saturating_sub(self.idle_since.elapsed());
        let head = self
            .head_since
            .map(|since| bounds.head.saturating_sub(since.elapsed()));
        Some(head.map_or(idle, |head| head.min(idle)))
    }
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Pulse>);

impl InFlight {
    pub(super) fn pulse(&self) -> &Arc<Pulse> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight -= 1;
        state.idle_since = Instant::now();
    }
}
