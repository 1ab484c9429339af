//! Watches of clients that ask from time to time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use atoll_protocol::envd::filesystem::FilesystemEvent;
use connectrpc::ConnectError;

use super::watch::{EVENTS_MAX, Watch, WatchError};

/// Watchers at once: nobody else ends those that clients forget.
const WATCHERS_MAX: usize = 256;

/// All watchers by id.
#[derive(Default)]
pub(crate) struct Watchers {
    by_id: Mutex<HashMap<String, Watcher>>,
}

struct Watcher {
    watch: Watch,
    /// Why it ended, after events that the client got first.
    end: Option<WatchError>,
}

impl Watchers {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, Watcher>) -> T) -> T {
        work(&mut self.by_id.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fails when there are too many.
    pub(crate) fn check_room(&self) -> Result<(), ConnectError> {
        if self.with(|by_id| by_id.len()) < WATCHERS_MAX {
            Ok(())
        } else {
            Err(ConnectError::resource_exhausted(format!(
                "there are {WATCHERS_MAX} watchers already; remove some first"
            )))
        }
    }

    /// Keeps a watch and says under which id.
    pub(crate) fn insert(&self, watch: Watch) -> Result<String, ConnectError> {
        self.check_room()?;
        let id = new_id();
        let watcher = Watcher { watch, end: None };
        self.with(|by_id| by_id.insert(id.clone(), watcher));
        Ok(id)
    }

    /// What happened since the last time, all of it up to this question. The
    /// reason of its end is told once, after the last event; then the watcher
    /// is gone.
    pub(crate) async fn events(&self, id: &str) -> Result<Vec<FilesystemEvent>, ConnectError> {
        let caught_up = self.with(|by_id| {
            let watcher = by_id.get(id).ok_or_else(|| unknown(id))?;
            Ok::<_, ConnectError>(watcher.watch.catch_up())
        })?;
        caught_up.await;
        self.take_events(id)
    }

    fn take_events(&self, id: &str) -> Result<Vec<FilesystemEvent>, ConnectError> {
        self.with(|by_id| {
            let watcher = by_id.get_mut(id).ok_or_else(|| unknown(id))?;
            let mut events = Vec::new();
            while watcher.end.is_none() && events.len() < EVENTS_MAX {
                match watcher.watch.try_next() {
                    Some(Ok(event)) => events.push(event),
                    Some(Err(error)) => watcher.end = Some(error),
                    None => break,
                }
            }
            match watcher.end.take() {
                Some(error) if events.is_empty() => {
                    by_id.remove(id);
                    Err(error.into())
                }
                end => {
                    watcher.end = end;
                    Ok(events)
                }
            }
        })
    }

    /// Ends a watcher.
    pub(crate) fn remove(&self, id: &str) -> Result<(), ConnectError> {
        let removed = self.with(|by_id| by_id.remove(id));
        removed.map(drop).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> ConnectError {
    ConnectError::not_found(format!("watcher with id {id} not found"))
}

/// An id that nobody guesses: the standard library's hashers have random
/// keys from the kernel.
fn new_id() -> String {
    let half = || RandomState::new().hash_one(std::time::SystemTime::now());
    format!("w{:016x}{:016x}", half(), half())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let ids: std::collections::HashSet<String> = (0..10_000).map(|_| new_id()).collect();
        assert_eq!(ids.len(), 10_000);
    }

    #[test]
    fn an_unknown_watcher_is_not_found() {
        let error = Watchers::default().take_events("wx").unwrap_err();
        assert_eq!(
            error.message.as_deref(),
            Some("watcher with id wx not found")
        );
    }
}
