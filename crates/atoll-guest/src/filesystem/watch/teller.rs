//! The client's end of a watch: events in their final form.

use std::path::Path;
use std::time::{Duration, Instant};

use atoll_protocol::envd::filesystem::{EventType, FilesystemEvent};
use tokio::sync::mpsc;

use super::super::entry::describe;
use super::{Order, WatchError};
use crate::users::{Names, Users};

/// How long names of owners are believed before they are read again.
const NAMES_LIFE: Duration = Duration::from_secs(1);

/// Why a watch ends.
#[derive(Debug)]
pub(super) enum Stop {
    /// Nobody listens any more.
    Closed,
    /// It cannot go on.
    Failed(WatchError),
}

impl From<WatchError> for Stop {
    fn from(error: WatchError) -> Self {
        Self::Failed(error)
    }
}

/// Tells a client what happens.
pub(super) struct Teller {
    sender: mpsc::Sender<Result<FilesystemEvent, WatchError>>,
    /// The watched directory as the client named it.
    path: String,
    owners: Option<Owners>,
    muted: bool,
}

/// Names of the owners of files, for entries.
struct Owners {
    names: Names,
    read: Instant,
}

impl Owners {
    fn read() -> Self {
        Self {
            names: Users::load().names(),
            read: Instant::now(),
        }
    }
}

impl Teller {
    /// Says nothing until it is unmuted: what happens before the client
    /// knows that the watch is set is not its business.
    pub(super) fn muted(
        order: &Order,
        sender: mpsc::Sender<Result<FilesystemEvent, WatchError>>,
    ) -> Self {
        Self {
            sender,
            path: order.path.clone(),
            owners: order.include_entry.then(Owners::read),
            muted: true,
        }
    }

    /// From now on events are told.
    pub(super) fn unmute(&mut self) {
        self.muted = false;
    }

    /// Whether events are not told yet.
    pub(super) fn is_muted(&self) -> bool {
        self.muted
    }

    /// Fails when nobody listens any more.
    pub(super) fn check(&self) -> Result<(), Stop> {
        if self.sender.is_closed() {
            Err(Stop::Closed)
        } else {
            Ok(())
        }
    }

    /// Tells an event of `name`, which is below the watched directory, or
    /// empty for the directory itself. Waits while the client is behind.
    pub(super) fn tell(&mut self, kind: EventType, name: &Path) -> Result<(), Stop> {
        if self.muted {
            return Ok(());
        }
        let name = name.to_string_lossy();
        let entry = match kind {
            EventType::EVENT_TYPE_CREATE
            | EventType::EVENT_TYPE_WRITE
            | EventType::EVENT_TYPE_CHMOD => self.owners.as_mut().and_then(|owners| {
                if owners.read.elapsed() > NAMES_LIFE {
                    *owners = Owners::read();
                }
                let path = match (self.path.trim_end_matches('/'), &*name) {
                    ("", "") => "/".to_owned(),
                    (path, "") => path.to_owned(),
                    (path, name) => format!("{path}/{name}"),
                };
                describe(&path, &owners.names).ok()
            }),
            EventType::EVENT_TYPE_REMOVE
            | EventType::EVENT_TYPE_RENAME
            | EventType::EVENT_TYPE_UNSPECIFIED => None,
        };
        let event = FilesystemEvent {
            name: if name.is_empty() {
                ".".to_owned()
            } else {
                name.into_owned()
            },
            r#type: kind.into(),
            entry: entry.into(),
            ..FilesystemEvent::default()
        };
        self.sender
            .blocking_send(Ok(event))
            .map_err(|_| Stop::Closed)
    }

    /// Tells the reason why nothing follows.
    pub(super) fn fail(self, error: WatchError) {
        let _ = self.sender.blocking_send(Err(error));
    }
}
