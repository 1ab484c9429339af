//! Commands of the sandbox.
//!
//! ```text
//!  guest (PID 1) ──fork/exec──▶ reaper (subreaper, root) ──fork/exec──▶ command (the user)
//!     ▲   control socket: order ▶, ◀ pid, ◀ exit status       │
//!     └── stdin / stdout / stderr or a terminal ──────────────┘
//! ```
//!
//! The reaper exists so that a timeout can find everything a command
//! started, also after `setsid` and double forks: orphans below it stay
//! below it. When the command ends by itself its reaper ends too and what is
//! left moves to PID 1, untouched.
//!
//! - [`launch`]: starts the pair; [`reaper`]: the process in between, of which
//!   one waits at any time for the next command ([`spare`]).
//! - [`command`]: one running command: its output, input and end;
//!   [`audience`]: who follows it.
//! - [`stream`]: nonblocking reads and writes of pipes and terminals.
//! - [`tree`]: finds and ends descendants; [`identity`]: which process a number means;
//!   [`mark`]: what they hand down.
//! - [`service`]: the RPC service over all of it.

pub(crate) mod audience;
pub(crate) mod command;
pub(crate) mod identity;
pub(crate) mod launch;
pub(crate) mod mark;
pub(crate) mod reaper;
pub(crate) mod room;
pub(crate) mod service;
pub(crate) mod spare;
pub(crate) mod stream;
pub(crate) mod tree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use command::Command;
use spare::Spare;

use crate::settings::Settings;

/// How long the end of a command can still be asked for.
const END_RETENTION: Duration = Duration::from_secs(30);

/// All commands that run or ended a moment ago.
#[derive(Clone)]
pub(crate) struct Commands {
    settings: Arc<Settings>,
    by_pid: Arc<Mutex<HashMap<u32, Arc<Command>>>>,
    spare: Arc<Spare>,
}

impl Commands {
    /// An empty table whose reapers come from `spare`.
    pub(crate) fn new(settings: Arc<Settings>, spare: Arc<Spare>) -> Self {
        Self {
            settings,
            by_pid: Arc::default(),
            spare,
        }
    }

    /// Where reapers wait for commands.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<u32, Arc<Command>>) -> T) -> T {
        work(&mut self.by_pid.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a command; it leaves the table by itself some time after its end.
    fn insert(&self, command: &Arc<Command>) {
        self.with(|by_pid| by_pid.insert(command.pid(), Arc::clone(command)));
        let (commands, command) = (self.clone(), Arc::clone(command));
        tokio::spawn(async move {
            command.exited().await;
            tokio::time::sleep(END_RETENTION).await;
            commands.with(|by_pid| {
                // The kernel may have given the pid to a newer command.
                if by_pid
                    .get(&command.pid())
                    .is_some_and(|current| Arc::ptr_eq(current, &command))
                {
                    by_pid.remove(&command.pid());
                }
            });
        });
    }

    fn by_pid(&self, pid: u32) -> Option<Arc<Command>> {
        self.with(|by_pid| by_pid.get(&pid).cloned())
    }

    /// The command with that tag, a running one before one that ended.
    fn by_tag(&self, tag: &str) -> Option<Arc<Command>> {
        self.with(|by_pid| {
            let mut tagged: Vec<_> = by_pid
                .values()
                .filter(|command| command.tag() == Some(tag))
                .collect();
            tagged.sort_by_key(|command| command.has_exited());
            tagged.first().map(|command| Arc::clone(command))
        })
    }

    fn running(&self) -> Vec<Arc<Command>> {
        self.with(|by_pid| {
            by_pid
                .values()
                .filter(|command| !command.has_exited())
                .cloned()
                .collect()
        })
    }
}
