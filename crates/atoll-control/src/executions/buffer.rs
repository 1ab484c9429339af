//! The last events of an execution, for everybody who watches it.
//!
//! Events have numbers from 1 on. Who asks for what follows a number gets it
//! as long as it is here; what had to go is told as a gap.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::ExecutionEvent;

/// Bytes of events that are kept of one execution.
const BUFFER_BYTES_MAX: usize = 1024 * 1024;

/// An event and its number.
#[derive(Debug, Clone)]
pub struct Stamped {
    /// Its number.
    pub id: u64,
    /// What happened.
    pub event: Arc<ExecutionEvent>,
}

/// What somebody who watches sees.
#[derive(Debug, Clone)]
pub enum Followed {
    /// Events that are not here any more.
    Dropped {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// The next event.
    Event(Stamped),
}

/// Events of one execution.
#[derive(Debug)]
pub struct EventBuffer {
    ring: Mutex<Ring>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Stamped>,
    bytes: usize,
    last_id: u64,
    is_over: bool,
}

impl Default for EventBuffer {
    fn default() -> Self {
        Self::with_limit(BUFFER_BYTES_MAX)
    }
}

impl EventBuffer {
    fn with_limit(limit: usize) -> Self {
        Self {
            ring: Mutex::default(),
            newest: watch::channel(0).0,
            limit,
        }
    }

    /// Adds an event; nothing comes after the last one.
    pub(super) fn push(&self, event: ExecutionEvent) {
        let mut ring = self.lock();
        if ring.is_over {
            return;
        }
        ring.is_over = matches!(event, ExecutionEvent::End(_));
        ring.last_id += 1;
        ring.bytes += event.bytes();
        let id = ring.last_id;
        ring.events.push_back(Stamped {
            id,
            event: Arc::new(event),
        });
        // The newest stays, however long it is.
        while ring.bytes > self.limit && ring.events.len() > 1 {
            if let Some(old) = ring.events.pop_front() {
                ring.bytes -= old.event.bytes();
            }
        }
        drop(ring);
        self.newest.send_replace(id);
    }

    /// The number of the newest event; nobody has seen a later one.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.lock().last_id
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// What follows the event `after`, and what will.
    #[must_use]
    pub fn follow(self: &Arc<Self>, after: u64) -> Follower {
        Follower {
            buffer: Arc::clone(self),
            newest: self.newest.subscribe(),
            after,
        }
    }

    /// What is here after the event `after`: at most `count` events, and
    /// whether nothing will follow them.
    #[must_use]
    pub fn after(&self, after: u64, count: usize) -> (Vec<Followed>, bool) {
        let ring = self.lock();
        let mut found = Vec::new();
        let first = ring.events.front().map_or(0, |oldest| oldest.id);
        let next = after.saturating_add(1);
        if first > next {
            found.push(Followed::Dropped {
                first: next,
                last: first - 1,
            });
        }
        let new = ring.events.iter().filter(|one| one.id > after);
        found.extend(new.take(count).cloned().map(Followed::Event));
        let is_last = match found.last() {
            Some(Followed::Event(last)) => last.id == ring.last_id,
            Some(Followed::Dropped { .. }) => false,
            None => after >= ring.last_id,
        };
        (found, is_last && ring.is_over)
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who watches an execution.
#[derive(Debug)]
pub struct Follower {
    buffer: Arc<EventBuffer>,
    newest: watch::Receiver<u64>,
    after: u64,
}

impl Follower {
    /// What comes next; none after the last event. Safe to cancel.
    pub async fn next(&mut self) -> Option<Followed> {
        loop {
            self.newest.mark_unchanged();
            let (mut found, is_over) = self.buffer.after(self.after, 1);
            if !found.is_empty() {
                let first = found.swap_remove(0);
                self.after = match &first {
                    Followed::Dropped { last, .. } => *last,
                    Followed::Event(event) => event.id,
                };
                return Some(first);
            }
            // Nobody adds to a buffer that nobody has.
            if is_over || self.newest.changed().await.is_err() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> ExecutionEvent {
        ExecutionEvent::Stdout {
            text: text.to_owned(),
        }
    }

    fn shown(followed: &Followed) -> String {
        match followed {
            Followed::Dropped { first, last } => format!("-{first}..{last}"),
            Followed::Event(Stamped { id, event }) => match event.as_ref() {
                ExecutionEvent::Stdout { text } => format!("{id}:{text}"),
                other => format!("{id}:{}", other.name()),
            },
        }
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_what_it_missed() {
        let buffer = Arc::new(EventBuffer::with_limit(200));
        let mut early = buffer.follow(0);
        buffer.push(said("a"));
        assert_eq!(shown(&early.next().await.unwrap()), "1:a");
        for number in 0..100 {
            buffer.push(said(&format!("{number:04}")));
        }
        assert!(buffer.bytes() <= 200);
        let gap = early.next().await.unwrap();
        let Followed::Dropped { first: 2, last } = gap else {
            panic!("{gap:?}");
        };
        let next = shown(&early.next().await.unwrap());
        assert_eq!(next, format!("{}:{:04}", last + 1, last - 1));
    }

    #[tokio::test]
    async fn a_number_that_nobody_gave_out_is_no_event() {
        let buffer = Arc::new(EventBuffer::default());
        buffer.push(said("a"));
        assert_eq!(buffer.newest(), 1);
        let (found, is_over) = buffer.after(u64::MAX, 10);
        assert!(found.is_empty() && !is_over);
    }

    #[tokio::test]
    async fn readers_go_on_where_they_were_and_end_with_the_end() {
        let buffer = Arc::new(EventBuffer::default());
        buffer.push(said("a"));
        buffer.push(said("b"));
        let mut late = buffer.follow(1);
        assert_eq!(shown(&late.next().await.unwrap()), "2:b");
        let waiting = tokio::spawn(async move {
            let end = late.next().await.map(|end| shown(&end));
            (end, late.next().await.is_none())
        });
        buffer.push(ExecutionEvent::End(Box::default()));
        buffer.push(said("never"));
        assert_eq!(waiting.await.unwrap(), (Some("3:end".to_owned()), true));
        assert_eq!(buffer.after(3, 10).0.len(), 0);
        assert!(buffer.after(3, 10).1 && buffer.after(0, 10).1);
        assert!(!buffer.after(0, 2).1);
    }
}
