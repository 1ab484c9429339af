//! Which process a number means. Numbers come again, so one that is kept for
//! later is kept together with the moment at which its process began.

use rustix::process::{Pid, Signal};

use super::tree;

/// One process, and no other that gets its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pid: i32,
    started: u64,
}

impl Identity {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let entry = tree::entry(pid)?;
        Some(Self {
            pid,
            started: entry.started,
        })
    }

    /// The same, if `parent` started it: whoever tells a number may tell any.
    pub(crate) fn child_of(parent: i32, pid: i32) -> Option<Self> {
        let entry = tree::entry(pid)?;
        (entry.parent == parent).then_some(Self {
            pid,
            started: entry.started,
        })
    }

    /// A process that had this number and is gone.
    pub(crate) fn gone(pid: i32) -> Self {
        Self {
            pid,
            started: u64::MAX,
        }
    }

    /// Its number.
    pub(crate) fn pid(self) -> i32 {
        self.pid
    }

    /// Whether the number still means it, dead or alive.
    pub(crate) fn is_there(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends it a signal; one that is gone needs none.
    pub(crate) fn send(self, signal: Signal) {
        if self.is_there() {
            tree::send(self.pid, signal);
        }
    }

    /// Sends a signal to the group that it leads.
    pub(crate) fn send_to_group(self, signal: Signal) {
        if self.is_there()
            && let Some(group) = Pid::from_raw(self.pid)
        {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_number_that_comes_again_is_another_process() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let identity = Identity::of(pid).unwrap();
        assert!(identity.is_there());
        let successor = Identity {
            started: identity.started + 1,
            ..identity
        };
        assert!(!successor.is_there() && !Identity::gone(pid).is_there());
        successor.send(Signal::KILL);
        successor.send_to_group(Signal::KILL);
        assert!(child.try_wait().unwrap().is_none());
        identity.send(Signal::KILL);
        child.wait().unwrap();
        assert!(!identity.is_there());
    }

    #[test]
    fn only_ones_own_children_are_ones_own() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Identity::child_of(own, pid), Identity::of(pid));
        for (parent, pid) in [(own, 1), (own, own), (1, pid), (own, i32::MAX), (own, -1)] {
            assert_eq!(Identity::child_of(parent, pid), None, "{parent} {pid}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
