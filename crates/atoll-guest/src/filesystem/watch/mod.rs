//! What happens in a directory, as it happens.
//!
//! ```text
//!  kernel queue ──▶ thread of the watch ──▶ bounded channel ──▶ stream or watcher
//!   (inotify)        tracker: names,          EVENTS_MAX
//!                    new directories
//! ```
//!
//! Every watch has a thread, in the name of its user. It reads the kernel's
//! queue as long as the channel has room; what does not fit stays with the
//! kernel, and when that has no room either, it says so and the watch ends
//! with that news. The thread ends with the receiving side.
//!
//! A thread and not a task, because directories that appear must be looked
//! into at once, and a look into a dead file system may last forever.
//!
//! - [`kernel`]: inotify; [`tree`]: names of watched directories.
//! - [`tracker`]: from the kernel's events to those of clients;
//!   [`discovery`]: directories that appear; [`teller`]: the client's end.

mod discovery;
mod kernel;
mod teller;
mod tracker;
mod tree;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_protocol::envd::filesystem::FilesystemEvent;
use connectrpc::ConnectError;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, oneshot};

use super::error::{FilesystemError, from_kernel, text};
use crate::rights::act_as;
use crate::users::User;
use tracker::Tracker;

/// Events between the kernel and a client.
pub(crate) const EVENTS_MAX: usize = 16 * 1024;

/// The same for events that carry their entry, which may hold 4 KiB of
/// metadata in hundreds of pieces.
const ENTRIES_MAX: usize = 1024;

/// What to watch.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// The directory.
    pub(crate) path: String,
    /// How far below it.
    pub(crate) reach: Reach,
    /// Whether events say what the path is now.
    pub(crate) include_entry: bool,
    /// Whether it may be on a network file system.
    pub(crate) allow_network_mounts: bool,
}

/// How far a watch reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What is in the directory.
    Directory,
    /// What is in the directory and all directories below it.
    Tree,
}

impl Reach {
    /// What `recursive` in a request means.
    pub(crate) fn of(recursive: bool) -> Self {
        if recursive {
            Self::Tree
        } else {
            Self::Directory
        }
    }
}

/// Why a watch cannot be set, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// The directory cannot be watched at all.
    #[error("{0}")]
    Refused(#[from] FilesystemError),
    /// Events of other machines would not be seen.
    #[error(
        "cannot watch path on network filesystem: {0}; set `allow_network_mounts` to see at least what is done from here"
    )]
    Network(String),
    /// The user has too many watches.
    #[error(
        "too many watched directories: the kernel has no room for '{0}'; end other watches, \
         watch fewer directories, or raise `fs.inotify.max_user_watches`"
    )]
    Directories(String),
    /// The user has too many of them.
    #[error(
        "too many watches of this user; end other watches or raise \
         `fs.inotify.max_user_instances`"
    )]
    Instances,
    /// Nobody took the events in time.
    #[error(
        "events were lost because more happened than was read in time; watch again and look at \
         the directory anew"
    )]
    Lost,
    /// The kernel refused.
    #[error("cannot watch '{path}': {}", text(.error))]
    Io {
        /// What.
        path: String,
        /// What it said.
        error: std::io::Error,
    },
}

impl From<WatchError> for ConnectError {
    fn from(error: WatchError) -> Self {
        let message = error.to_string();
        match error {
            WatchError::Refused(error) => error.into(),
            WatchError::Network(_) => Self::invalid_argument(message),
            WatchError::Directories(_) | WatchError::Instances => Self::resource_exhausted(message),
            WatchError::Lost => Self::data_loss(message),
            WatchError::Io { error, .. } => from_kernel(&error, message),
        }
    }
}

/// How long the thread of a watch may take to tell what has happened already.
/// One that is held up longer tells it the next time.
const CATCH_UP_BOUND: Duration = Duration::from_secs(1);

/// A watched directory. Dropping it ends the watch.
pub(crate) struct Watch {
    events: mpsc::Receiver<Result<FilesystemEvent, WatchError>>,
    bell: Arc<Bell>,
}

/// Wakes the thread of a watch.
struct Bell {
    fd: OwnedFd,
    /// Who wants to know when all that happened before is told.
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Bell {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            waiting: Mutex::default(),
        })
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Makes it silent again, and says who rang to be told.
    fn answer(&self) -> Vec<oneshot::Sender<()>> {
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
        std::mem::take(&mut *self.waiting())
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<oneshot::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Watches a directory in the name of `user`. What happens from the time
    /// this returns is told.
    pub(crate) async fn start(order: Order, user: User) -> Result<Self, WatchError> {
        let bell = Bell::new().map_err(FilesystemError::Thread)?;
        let bell = Arc::new(bell);
        let room = if order.include_entry {
            ENTRIES_MAX
        } else {
            EVENTS_MAX
        };
        let (sender, events) = mpsc::channel(room);
        // From here on a caller that goes away takes the thread with it.
        let watch = Self {
            events,
            bell: Arc::clone(&bell),
        };
        let (ready, is_ready) = oneshot::channel();
        let thread = async move {
            act_as(&user, move || {
                match Tracker::start(order, sender) {
                    Ok(tracker) => {
                        // Nobody waits: the channel is closed then.
                        let _ = ready.send(Ok(()));
                        tracker.run(&bell);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
                Ok(())
            })
            .await
        };
        let thread = tokio::spawn(thread);
        match is_ready.await {
            Ok(Ok(())) => Ok(watch),
            Ok(Err(error)) => Err(error),
            // The thread never came to it.
            Err(_) => {
                let error = match thread.await {
                    Ok(Err(error)) => error,
                    _ => std::io::Error::other("the thread ended without an answer"),
                };
                Err(WatchError::Refused(FilesystemError::Thread(error)))
            }
        }
    }

    /// Waits for the next event. After an error there is nothing more.
    pub(crate) async fn next(&mut self) -> Option<Result<FilesystemEvent, WatchError>> {
        self.events.recv().await
    }

    /// Asks to be told when all that has happened by now can be taken.
    pub(crate) fn catch_up(&self) -> impl Future<Output = ()> + use<> {
        let (told, is_told) = oneshot::channel();
        // A thread that has ended has told everything.
        if !self.events.is_closed() {
            self.bell.waiting().push(told);
            self.bell.ring();
        }
        async move {
            let _ = tokio::time::timeout(CATCH_UP_BOUND, is_told).await;
        }
    }

    /// The next event if there is one by now.
    pub(crate) fn try_next(&mut self) -> Option<Result<FilesystemEvent, WatchError>> {
        self.events.try_recv().ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // First, so that the thread finds the channel closed when it wakes.
        self.events.close();
        self.bell.ring();
    }
}
