//! The waist of Atoll: what every isolation tier offers to the layers above.
//!
//! Nothing above this trait knows an IP, a pid or a path of a sandbox.
//! Calls block for at most the bounds named here; asynchronous callers run
//! them on a blocking thread.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::monitor::message::{Answer, Question, receive, send};
use crate::{
    InvalidPolicy, LimitsError, Memory, NetworkPolicy, NetworkUsage, Outcome, SandboxId,
    SandboxSpec,
};

/// How long a monitor may take to let a sandbox run on.
const RELEASE_BOUND: Duration = Duration::from_secs(30);

/// How strongly a sandbox is kept apart from the host.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Namespaces, seccomp and cgroups on the host's kernel.
    #[default]
    Container,
    /// gVisor's user-space kernel.
    Gvisor,
    /// A virtual machine.
    Microvm,
}

impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
        })
    }
}

/// One way to run sandboxes.
pub trait Runtime: Send + Sync {
    /// The tier it implements.
    fn tier(&self) -> Tier;

    /// Creates and starts a sandbox; its guest may still be coming up.
    ///
    /// # Errors
    /// When any part cannot be made exactly as asked. Nothing is left behind.
    fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError>;
}

/// The way from the host into a sandbox, for RPC and user ports alike.
pub trait Dial: Send + Sync {
    /// Opens a byte stream to `port` on the sandbox's loopback interface.
    ///
    /// # Errors
    /// As `connect(2)` does; `ConnectionRefused` when nobody listens there.
    fn dial(&self, port: u16) -> io::Result<TcpStream>;
}

/// One running sandbox.
pub trait Sandbox: Dial {
    /// Its name.
    fn id(&self) -> &SandboxId;

    /// How it is kept apart.
    fn tier(&self) -> Tier;

    /// Stops every process in it where it stands; memory is kept.
    ///
    /// # Errors
    /// When the sandbox is gone or the kernel refuses.
    fn freeze(&self) -> Result<(), SandboxError>;

    /// Lets a frozen sandbox run on.
    ///
    /// # Errors
    /// When the sandbox is gone or the kernel refuses.
    fn thaw(&self) -> Result<(), SandboxError>;

    /// Ends every process, whose memory is free then, and keeps its files and its place. One
    /// that is suspended stays as it is.
    ///
    /// # Errors
    /// When the sandbox is gone, or its tier cannot keep files without memory.
    fn suspend(&self) -> Result<(), SandboxError>;

    /// Ends every process and keeps their memory on disk, with its files and its place. One
    /// that is suspended stays as it is. Connections to the outside are broken.
    ///
    /// # Errors
    /// When the sandbox is gone, its tier cannot do that, or something went wrong: then it
    /// runs on.
    fn checkpoint(&self) -> Result<(), SandboxError>;

    /// Writes its memory, and the files it has changed, into `directory`, which does not exist
    /// yet: others can begin with that. It holds still meanwhile and runs on, also when that
    /// fails; then `directory` is not there. Connections to the outside are broken.
    ///
    /// # Errors
    /// When the sandbox is gone, its tier cannot do that, or something went wrong.
    fn write_memory(&self, directory: &Path) -> Result<Memory, SandboxError>;

    /// Lets a suspended sandbox run on: one whose memory was kept goes on where it was, until
    /// it is settled; another boots again on its files, with another `boot_id`, and its guest
    /// has to be waited for and sworn in. One that runs stays as it is.
    ///
    /// # Errors
    /// When the sandbox is gone, or something went wrong: then it is suspended as before;
    /// [`SandboxError::Damaged`] when that will not change.
    fn wake(&self) -> Result<(), SandboxError>;

    /// Forgets what was kept of its memory: it runs on as it should. Until then
    /// [`Sandbox::suspend`] lets it be as before it was woken up.
    ///
    /// # Errors
    /// When the sandbox is gone.
    fn settle(&self) -> Result<(), SandboxError>;

    /// What the host measured of it. Never what the guest says of itself.
    ///
    /// # Errors
    /// When the sandbox is gone.
    fn stats(&self) -> Result<Stats, SandboxError>;

    /// What [`stats`](Self::stats) tells of executions: CPU time, the peak of memory, what was
    /// refused or ended for a limit, and the disk. Everything else may be nought.
    ///
    /// # Errors
    /// When the sandbox is gone.
    fn counters(&self) -> Result<Stats, SandboxError> {
        self.stats()
    }

    /// Puts `policy` in place of what it could reach so far, lists and all.
    /// Connections to what is forbidden now are cut.
    ///
    /// # Errors
    /// When the policy is invalid, when it asks for a network that the sandbox
    /// was made without, when the sandbox is gone or the kernel refuses.
    fn set_network(&self, policy: &NetworkPolicy) -> Result<(), SandboxError>;

    /// Ends it `left` from now, also with nobody watching, whatever was asked for before.
    ///
    /// # Errors
    /// When the sandbox is gone.
    fn end_after(&self, left: Duration) -> Result<(), SandboxError>;

    /// A descriptor that becomes readable when its processes have ended, or, if it has
    /// none because it is suspended, when it cannot be woken up any more. What
    /// it had on this host may still be on its way out: see [`Sandbox::wait`]. It tells
    /// nothing any more once the sandbox is suspended or woken up: ask for another then.
    ///
    /// # Errors
    /// When no descriptor is left.
    fn end_signal(&self) -> io::Result<OwnedFd>;

    /// Ends every process but keeps the disk, whose changes over the layers
    /// can then be read below the returned directory (owners as inside).
    ///
    /// # Errors
    /// When the sandbox is gone.
    fn halt(&self) -> Result<PathBuf, SandboxError>;

    /// Stops every process where it stands, so that what changed over the layers can be read,
    /// until the guard is released or dropped, or its owner dies.
    ///
    /// # Errors
    /// When the sandbox is gone, its tier has no such files, or somebody reads them already.
    fn hold_still(&self) -> Result<Still, SandboxError>;

    /// Waits until it has ended; `None` when `bound` passes first.
    ///
    /// # Errors
    /// When the monitor cannot be asked.
    fn wait(&self, bound: Duration) -> Result<Option<Outcome>, SandboxError>;

    /// Ends it and removes everything it had on this host.
    ///
    /// # Errors
    /// When something could not be removed, then the next start tries again;
    /// [`SandboxError::Gone`] when it had ended before, then nothing is left.
    fn destroy(&self) -> Result<Outcome, SandboxError>;
}

/// A sandbox whose processes hold still. They run on when it is dropped.
#[derive(Debug)]
pub struct Still {
    changes: PathBuf,
    layers: Vec<PathBuf>,
    monitor: UnixStream,
}

impl Still {
    pub(crate) fn new(changes: PathBuf, layers: Vec<PathBuf>, monitor: UnixStream) -> Self {
        Self {
            changes,
            layers,
            monitor,
        }
    }

    /// The layers it stands on, the top one first.
    #[must_use]
    pub fn layers(&self) -> &[PathBuf] {
        &self.layers
    }

    /// Where its changes over the layers are, owners as inside. Whoever reads them
    /// knows only after [`Still::release`] that they were whole.
    #[must_use]
    pub fn changes(&self) -> &Path {
        &self.changes
    }

    /// Lets its processes run on.
    ///
    /// # Errors
    /// [`SandboxError::Gone`] when it ended meanwhile: what was read may lack anything.
    pub fn release(mut self) -> Result<(), SandboxError> {
        let gone = |_| SandboxError::Gone;
        send(&mut self.monitor, &Question::Release).map_err(gone)?;
        match receive(&self.monitor, Some(RELEASE_BOUND)) {
            Ok(Some(Answer::Done)) => Ok(()),
            Ok(_) | Err(_) => Err(SandboxError::Gone),
        }
    }
}

/// What the host measured of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// CPU time used by all its processes, in microseconds.
    pub cpu_usec: u64,
    /// Time in which it wanted to run and its CPU limit did not let it, in microseconds.
    pub throttled_usec: u64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// What of it holds files and can be had back.
    #[serde(default)]
    pub memory_cache_bytes: u64,
    /// Most memory ever in use, in bytes.
    pub memory_peak_bytes: u64,
    /// Processes ended by the kernel for memory.
    pub oom_kills: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// How often a new process was refused.
    pub pids_refused: u64,
    /// Bytes free on its disk.
    pub disk_free_bytes: u64,
    /// Bytes its disk holds.
    pub disk_total_bytes: u64,
    /// Inodes free on its disk.
    pub inodes_free: u64,
    /// Inodes its disk has.
    pub inodes_total: u64,
    /// What it sent, got and was denied; `None` without a network.
    #[serde(default)]
    pub network: Option<NetworkUsage>,
}

/// Why a sandbox could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Limits that nothing could run under.
    #[error("impossible limits")]
    Limits(#[from] LimitsError),
    /// A network policy that would not do what it says.
    #[error("impossible network policy")]
    Network(#[from] InvalidPolicy),
    /// Something that was asked for cannot be had in this tier or on this host.
    #[error("{what}")]
    Refused {
        /// What cannot be had, and why.
        what: String,
        /// What to ask for instead.
        hint: String,
    },
    /// The host lacks something; `hint` says how to get it.
    #[error("{what}")]
    Host {
        /// What could not be done, and why.
        what: String,
        /// What the operator can do about it.
        hint: Option<String>,
    },
    /// The monitor could not be started or did not answer.
    #[error("the monitor of the sandbox failed: {0}")]
    Monitor(String),
}

/// Why there is no way to a sandbox that should run.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It does not run, or not in this home.
    #[error("no such sandbox runs in this home")]
    Gone,
    /// The host did not let us look.
    #[error("cannot look for the sandbox")]
    Host(#[source] io::Error),
    /// Its monitor lives and says nothing useful.
    #[error("the monitor of the sandbox does not introduce it: {0}")]
    Monitor(String),
}

/// Why an operation on a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// It is not there any more.
    #[error("the sandbox has ended")]
    Gone,
    /// This tier cannot do that.
    #[error("the {tier} tier cannot {operation}")]
    Unsupported {
        /// The tier.
        tier: Tier,
        /// What was asked.
        operation: &'static str,
    },
    /// What was kept of it on disk is not what was written. It stays suspended.
    #[error("what was kept of the sandbox's memory cannot be used: {0}")]
    Damaged(String),
    /// The kernel or the monitor refused.
    #[error("{0}")]
    Failed(String),
}
