//! What all sandboxes of this host may have together: processors, memory, and
//! how many there are. Booked by their limits, before anything is made.
//!
//! A limit is a ceiling and no use: an idle sandbox takes a few MiB of its GiB.
//! So more is booked than the host has, by factors that the operator sets. Who
//! finds the host full waits in a line, in the order of arrival, for a bounded
//! time; the line has an end too. A sandbox that holds still keeps its memory
//! and gives its processors back; woken up, it gets them without waiting. One of
//! which only files are kept gives its memory back too, and is woken up only
//! where there is room for it.
//!
//! Nothing here knows what a sandbox is: amounts come in, a [`Booked`] comes
//! out, and everything is given back when that is dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_engine::Limits;
use tokio::sync::oneshot;

/// What a host has, and how far it is booked.
#[derive(Debug, Clone, PartialEq)]
pub struct HostCapacity {
    /// Processors, in thousandths of one.
    pub cpu_millis: u64,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// How often each processor is booked, at most.
    pub cpu_overcommit: f64,
    /// How often each MiB is booked, at most.
    pub memory_overcommit: f64,
    /// Sandboxes at once, at most.
    pub sandboxes: usize,
    /// Creations that wait for room, at most.
    pub queue_length: usize,
    /// How long each of them waits, at most.
    pub queue_wait: Duration,
}

impl HostCapacity {
    /// Of a host of this size. E2B's default size is 2 processors and 1 GiB:
    /// with these factors 2 cores are enough for 200 sandboxes and 24 GiB for
    /// 240 of them, which are mostly idle.
    #[must_use]
    pub fn of(cpu_millis: u64, memory_mib: u64) -> Self {
        Self {
            cpu_millis,
            memory_mib,
            cpu_overcommit: 200.0,
            memory_overcommit: 10.0,
            sandboxes: 1000,
            queue_length: 200,
            queue_wait: Duration::from_secs(20),
        }
    }

    /// Of this host.
    #[must_use]
    pub fn measured() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let system = rustix::system::sysinfo();
        let bytes = system.totalram.saturating_mul(u64::from(system.mem_unit));
        Self::of(
            u64::try_from(cores).unwrap_or(1) * 1000,
            bytes / (1024 * 1024),
        )
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "amounts are far below 2^52, and a factor below zero books nothing"
    )]
    fn total(&self) -> Amount {
        let times = |amount: u64, factor: f64| (amount as f64 * factor) as u64;
        Amount {
            cpu_millis: times(self.cpu_millis, self.cpu_overcommit),
            memory_mib: times(self.memory_mib, self.memory_overcommit),
            sandboxes: self.sandboxes,
        }
    }
}

/// Some of what a host has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amount {
    cpu_millis: u64,
    memory_mib: u64,
    sandboxes: usize,
}

impl Amount {
    fn of(limits: &Limits) -> Self {
        Self {
            cpu_millis: limits.cpu_millis,
            memory_mib: limits.memory_mib,
            sandboxes: 1,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
            sandboxes: self.sandboxes.saturating_add(other.sandboxes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
            sandboxes: self.sandboxes.saturating_sub(other.sandboxes),
        }
    }

    /// What of `total` this is more than.
    fn beyond(self, total: Self) -> Option<Resource> {
        if self.memory_mib > total.memory_mib {
            Some(Resource::Memory)
        } else if self.cpu_millis > total.cpu_millis {
            Some(Resource::Processors)
        } else if self.sandboxes > total.sandboxes {
            Some(Resource::Sandboxes)
        } else {
            None
        }
    }
}

/// What a host can run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Processors.
    Processors,
    /// Places for sandboxes.
    Sandboxes,
}

impl std::fmt::Display for Resource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Memory => "memory",
            Self::Processors => "CPU",
            Self::Sandboxes => "number of sandboxes",
        })
    }
}

/// Why nothing was booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// It waited as long as it may.
    #[error(
        "the server is full: its {0} is booked, and nothing became free within {seconds} s",
        seconds = .1.as_secs()
    )]
    Waited(Resource, Duration),
    /// Too many wait already.
    #[error("the server is full: its {0} is booked, and {1} requests wait for it already")]
    Queue(Resource, usize),
    /// What was given back is somebody else's now.
    #[error("the server is full: its {0} is booked")]
    Now(Resource),
    /// An empty host would be too small.
    #[error("the server is too small for this sandbox: its {0} would not be enough")]
    Never(Resource),
}

/// Everything that is booked on this host. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Booking {
    total: Amount,
    queue_length: usize,
    queue_wait: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    booked: Amount,
    waiting: VecDeque<Waiter>,
    next_number: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    need: Amount,
    granted: oneshot::Sender<Booked>,
}

/// A part of the host, until dropped.
#[derive(Debug)]
pub(super) struct Booked {
    booking: Booking,
    amount: Amount,
    /// What a sandbox gives back while it holds still.
    lent: Amount,
}

/// How much of its part a sandbox uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// All of it.
    Running,
    /// Its memory.
    Frozen,
    /// Its place among the sandboxes.
    Suspended,
}

impl Booking {
    pub(super) fn new(capacity: &HostCapacity) -> Self {
        Self {
            total: capacity.total(),
            queue_length: capacity.queue_length,
            queue_wait: capacity.queue_wait,
            state: Arc::default(),
        }
    }

    /// A part of this size if it is free now and nobody waits for it.
    pub(super) fn take_now(&self, limits: &Limits) -> Option<Booked> {
        let need = Amount::of(limits);
        let mut state = self.lock();
        let fits = state.booked.plus(need).beyond(self.total).is_none();
        if !fits || !state.waiting.is_empty() {
            return None;
        }
        state.booked = state.booked.plus(need);
        drop(state);
        Some(self.booked(need))
    }

    /// The part of a sandbox that is there already.
    pub(super) fn take_anyway(&self, limits: &Limits) -> Booked {
        let need = Amount::of(limits);
        let mut state = self.lock();
        state.booked = state.booked.plus(need);
        drop(state);
        self.booked(need)
    }

    /// A part of this size, as soon as it is this one's turn. `make_room` is
    /// called when it has to wait.
    ///
    /// # Errors
    /// When it waited too long, too many wait, or it could never be.
    pub(super) async fn take(
        &self,
        limits: &Limits,
        make_room: impl FnOnce(),
    ) -> Result<Booked, Full> {
        let need = Amount::of(limits);
        if let Some(resource) = need.beyond(self.total) {
            return Err(Full::Never(resource));
        }
        if let Some(booked) = self.take_now(limits) {
            return Ok(booked);
        }
        let (granted, turn) = oneshot::channel();
        let (number, resource) = {
            let mut state = self.lock();
            let resource = self.missing(&state, need);
            let waiting = state.waiting.len();
            if waiting >= self.queue_length {
                drop(state);
                // For who asks next.
                make_room();
                return Err(Full::Queue(resource, waiting));
            }
            let number = state.next_number;
            state.next_number += 1;
            state.waiting.push_back(Waiter {
                number,
                need,
                granted,
            });
            (number, resource)
        };
        // Whoever stops waiting, also by being dropped, leaves the line.
        let place = Place {
            booking: self,
            number,
        };
        // What was given back since nothing was free.
        self.serve();
        make_room();
        let granted = tokio::time::timeout(self.queue_wait, turn).await;
        drop(place);
        match granted {
            Ok(Ok(booked)) => Ok(booked),
            Ok(Err(_)) | Err(_) => Err(Full::Waited(resource, self.queue_wait)),
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// What the next one in the line, or one that needs `need`, lacks.
    fn missing(&self, state: &State, need: Amount) -> Resource {
        let first = state.waiting.front().map_or(need, |waiter| waiter.need);
        let missing = state.booked.plus(first).beyond(self.total);
        missing.unwrap_or(Resource::Memory)
    }

    /// Gives to those who wait what they wait for, the first one first.
    fn serve(&self) {
        let mut served = Vec::new();
        let mut state = self.lock();
        while let Some(first) = state.waiting.front() {
            let booked = state.booked.plus(first.need);
            if booked.beyond(self.total).is_some() {
                break; // who needs less does not pass: nobody waits for ever
            }
            state.booked = booked;
            served.extend(state.waiting.pop_front());
        }
        drop(state);
        for waiter in served {
            // Who does not wait any more gives it back by dropping it.
            let _ = waiter.granted.send(self.booked(waiter.need));
        }
    }

    fn booked(&self, amount: Amount) -> Booked {
        Booked {
            booking: self.clone(),
            amount,
            lent: Amount::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the line, until dropped.
struct Place<'b> {
    booking: &'b Booking,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.booking.lock();
        state.waiting.retain(|waiter| waiter.number != self.number);
        drop(state);
        // Who came next may need less.
        self.booking.serve();
    }
}

impl Booked {
    /// Books all of its part again, memory only if there is room for it.
    ///
    /// # Errors
    /// When there is none; then nothing has changed.
    pub(super) fn take_back(&mut self) -> Result<(), Full> {
        let memory = Amount {
            memory_mib: self.lent.memory_mib,
            ..Amount::default()
        };
        let mut state = self.booking.lock();
        if memory != Amount::default() {
            let beyond = state.booked.plus(memory).beyond(self.booking.total);
            if beyond == Some(Resource::Memory) {
                return Err(Full::Now(Resource::Memory));
            }
        }
        state.booked = state.booked.plus(self.lent);
        drop(state);
        self.lent = Amount::default();
        Ok(())
    }

    /// Books what a sandbox in this state needs, and gives back the rest.
    pub(super) fn hold(&mut self, hold: Hold) {
        let lent = match hold {
            Hold::Running => Amount::default(),
            Hold::Frozen => Amount {
                cpu_millis: self.amount.cpu_millis,
                ..Amount::default()
            },
            Hold::Suspended => Amount {
                sandboxes: 0,
                ..self.amount
            },
        };
        if lent == self.lent {
            return;
        }
        let mut state = self.booking.lock();
        state.booked = state.booked.plus(self.lent).minus(lent);
        drop(state);
        self.lent = lent;
        self.booking.serve();
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        let mut state = self.booking.lock();
        state.booked = state.booked.minus(self.amount.minus(self.lent));
        drop(state);
        self.booking.serve();
    }
}

#[cfg(test)]
mod tests;
