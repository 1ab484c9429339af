//! The process of a kernel: how it ends, and how it is ended.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::timeout;

use super::forkserver::Forkserver;
use crate::process::identity::Identity;
use crate::process::launch::Reports;
use crate::process::mark::Mark;
use crate::process::reaper::Report;
use crate::process::tree;

/// How a kernel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// Whoever could tell is gone too.
    Unknown,
}

impl Exit {
    /// From a status as `waitpid` tells it.
    pub(super) fn from_wait_status(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            Self::Exited(libc::WEXITSTATUS(status))
        } else if libc::WIFSIGNALED(status) {
            Self::Signaled(libc::WTERMSIG(status))
        } else {
            Self::Unknown
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(out, "ended with exit status {code}"),
            Self::Signaled(libc::SIGKILL) => out.write_str(
                "was killed (SIGKILL), as happens when the memory of the sandbox runs out",
            ),
            Self::Signaled(libc::SIGSEGV) => {
                out.write_str("crashed (SIGSEGV: a native extension touched memory it does not have, or the stack overflowed)")
            }
            Self::Signaled(libc::SIGABRT) => out.write_str("aborted (SIGABRT)"),
            Self::Signaled(signal) => write!(out, "was ended by signal {signal}"),
            Self::Unknown => out.write_str("ended"),
        }
    }
}

/// Processes of a kernel beyond which it is ended instead of interrupted, with
/// those that left its session: one that few did may be a server that stays.
pub(super) const CROWD_MAX: usize = 64;

/// How long what a kernel left may take to be ended.
const SWEEP_BOUND: Duration = Duration::from_secs(20);

/// All kernels that are there and that nobody ends.
static ALIVE: Mutex<BTreeSet<Identity>> = Mutex::new(BTreeSet::new());

fn alive() -> MutexGuard<'static, BTreeSet<Identity>> {
    // Each change is a single step.
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kernels that hold still, each with its group, until this is dropped.
pub(crate) struct KernelsHeld(Vec<Identity>);

/// Stops all kernels and what is in their groups, by one call for each.
pub(crate) fn hold_kernels() -> KernelsHeld {
    let kernels: Vec<Identity> = alive().iter().copied().collect();
    for kernel in &kernels {
        kernel.send_to_group(Signal::STOP);
    }
    KernelsHeld(kernels)
}

impl Drop for KernelsHeld {
    fn drop(&mut self) {
        let alive = alive();
        // Whoever is being ended holds still for that.
        for kernel in self.0.iter().filter(|kernel| alive.contains(kernel)) {
            kernel.send_to_group(Signal::CONT);
        }
    }
}

/// A kernel's process, which leads a session of its own. When it ends, what it
/// started and that did not leave the session is ended at once: later its
/// number may be somebody else's. Dropped, it is ended.
#[derive(Debug)]
pub(super) struct KernelProcess {
    identity: Identity,
    exit: watch::Receiver<Option<Exit>>,
    /// Whether nothing is left to be ended.
    swept: watch::Receiver<bool>,
    origin: Origin,
}

/// Who started a kernel.
#[derive(Debug)]
enum Origin {
    /// The parent of kernels, which stays as long as one of them does.
    Fork {
        /// What it and everything that it starts has.
        mark: Mark,
        _parent: Arc<Forkserver>,
    },
    /// A reaper, below which everything stays that the kernel started.
    Reaper(i32),
}

impl KernelProcess {
    /// A fork of the parent of kernels, which tells of its end.
    pub(super) fn forked(
        identity: Identity,
        exit: watch::Receiver<Option<Exit>>,
        mark: Mark,
        parent: Arc<Forkserver>,
    ) -> Self {
        let origin = Origin::Fork {
            mark,
            _parent: parent,
        };
        Self::new(identity, exit, origin)
    }

    /// One that was started behind a reaper.
    pub(super) fn launched(pid: i32, reaper: i32, mut reports: Reports) -> Self {
        // It may have ended already, of which the reaper tells.
        let identity = Identity::of(pid).unwrap_or(Identity::gone(pid));
        let (told, exit) = watch::channel(None);
        tokio::spawn(async move {
            let exit = match reports.next().await {
                Some(Report::Exited { code }) => Exit::Exited(code),
                Some(Report::Signaled { signal }) => Exit::Signaled(signal),
                Some(Report::Taken | Report::Started { .. } | Report::Failed { .. }) | None => {
                    Exit::Unknown
                }
            };
            told.send_replace(Some(exit));
        });
        Self::new(identity, exit, Origin::Reaper(reaper))
    }

    fn new(identity: Identity, exit: watch::Receiver<Option<Exit>>, origin: Origin) -> Self {
        let (told, swept) = watch::channel(false);
        let mut ended = exit.clone();
        let mark = origin.mark();
        alive().insert(identity);
        tokio::spawn(async move {
            // Whoever could tell of its end is gone, if nobody does: that is one too.
            let _ = ended.wait_for(Option::is_some).await;
            alive().remove(&identity);
            tree::kill_session(identity.pid()).await;
            disperse(identity, mark).await;
            told.send_replace(true);
        });
        Self {
            identity,
            exit,
            swept,
            origin,
        }
    }

    /// How it ended, if it did.
    pub(super) fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits for its end.
    pub(super) async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.unwrap_or(Exit::Unknown),
            Err(_) => Exit::Unknown,
        }
    }

    /// Breaks off what it does, as Ctrl-C in a terminal would: for the
    /// programs that it waits for as well.
    pub(super) fn interrupt(&self) {
        if self.exit().is_none() {
            self.identity.send_to_group(Signal::INT);
        }
    }

    /// Whether it has become a crowd: then it holds still, and is to be ended. It holds still
    /// too while it is counted: thousands that fork leave nobody the time to.
    pub(super) async fn is_crowd(&self) -> bool {
        alive().remove(&self.identity);
        self.identity.send_to_group(Signal::STOP);
        let size = match self.origin {
            Origin::Fork { mark, .. } => tree::crowd_size(self.identity.pid(), mark).await,
            Origin::Reaper(reaper) => tree::size_below(reaper).await,
        };
        if size <= CROWD_MAX {
            self.identity.send_to_group(Signal::CONT);
            if self.exit().is_none() {
                alive().insert(self.identity);
            }
        }
        size > CROWD_MAX
    }

    /// Ends it and what it started.
    pub(super) async fn end(&self) {
        if self.exit().is_none() {
            end(self.identity, self.origin.mark()).await;
        } else {
            let mut swept = self.swept.clone();
            let _ = timeout(SWEEP_BOUND, swept.wait_for(|swept| *swept)).await;
        }
    }

    /// The same, with what left the session as well, where that can be found:
    /// whatever has become so many was not meant to stay.
    pub(super) async fn end_crowd(&self) {
        if let Origin::Reaper(reaper) = self.origin
            && self.exit().is_none()
        {
            tree::kill_below_reaper(reaper).await;
        }
        self.end().await;
    }
}

impl Origin {
    fn mark(&self) -> Option<Mark> {
        match self {
            Self::Fork { mark, .. } => Some(*mark),
            Self::Reaper(_) => None,
        }
    }
}

async fn end(identity: Identity, mark: Option<Mark>) {
    alive().remove(&identity);
    // The group as a whole, in one call: what forks without end is faster than
    // anybody who looks for it. Not killed yet: whoever left it would take the room.
    identity.send_to_group(Signal::STOP);
    disperse(identity, mark).await;
    identity.send_to_group(Signal::KILL);
    if identity.is_there() {
        tree::kill_session(identity.pid()).await;
    }
    // One that had no time to begin its session.
    identity.send(Signal::KILL);
}

/// Ends everything that a kernel has become, if that is a crowd.
async fn disperse(identity: Identity, mark: Option<Mark>) {
    if let Some(mark) = mark
        && tree::crowd_size(identity.pid(), mark).await > CROWD_MAX
    {
        tree::kill_crowd(identity.pid(), mark).await;
    }
}

impl Drop for KernelProcess {
    fn drop(&mut self) {
        if self.exit().is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(end(self.identity, self.origin.mark()));
        }
    }
}
