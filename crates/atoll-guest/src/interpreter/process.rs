//! The process of a kernel: how it ends, and how it is ended.

use std::fmt;

use rustix::process::{Pid, Signal};
use tokio::sync::watch;

use crate::process::launch::Reports;
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

/// A kernel's process, which leads a session of its own. Dropped, it is
/// ended with everything it started and that did not leave the session.
#[derive(Debug)]
pub(super) struct KernelProcess {
    pid: i32,
    exit: watch::Receiver<Option<Exit>>,
}

impl KernelProcess {
    /// A fork of the parent of kernels, which tells of its end.
    pub(super) fn forked(pid: i32, exit: watch::Receiver<Option<Exit>>) -> Self {
        Self { pid, exit }
    }

    /// One that was started behind a reaper.
    pub(super) fn launched(pid: i32, mut reports: Reports) -> Self {
        let (told, exit) = watch::channel(None);
        tokio::spawn(async move {
            let exit = match reports.next().await {
                Some(Report::Exited { code }) => Exit::Exited(code),
                Some(Report::Signaled { signal }) => Exit::Signaled(signal),
                Some(Report::Started { .. } | Report::Failed { .. }) | None => Exit::Unknown,
            };
            told.send_replace(Some(exit));
        });
        Self { pid, exit }
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
        if self.exit().is_none()
            && let Some(group) = Pid::from_raw(self.pid)
        {
            let _ = rustix::process::kill_process_group(group, Signal::INT);
        }
    }

    /// How many processes it has become.
    pub(super) fn crowd(&self) -> usize {
        tree::session_size(self.pid)
    }

    /// Ends it and what it started.
    pub(super) async fn end(&self) {
        end(self.pid, self.exit().is_some()).await;
    }
}

async fn end(pid: i32, has_exited: bool) {
    tree::kill_session(pid).await;
    if !has_exited {
        // One that had no time to begin its session.
        tree::send(pid, Signal::KILL);
    }
}

impl Drop for KernelProcess {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(end(self.pid, self.exit().is_some()));
        }
    }
}
