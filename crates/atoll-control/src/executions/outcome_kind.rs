//! How executions end, in words that programs can match on.

use std::fmt;

use atoll_engine::Outcome;
use atoll_store::db::ExecutionStatus;

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal, $status:ident;)*) => {
        /// How an execution ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum OutcomeKind {
            $($(#[doc = $doc])* $name,)*
        }

        impl OutcomeKind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// In one word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means for whoever asked.
            #[must_use]
            pub const fn status(self) -> ExecutionStatus {
                match self { $(Self::$name => ExecutionStatus::$status,)* }
            }
        }
    };
}

outcomes! {
    /// It came to its end: exit status 0, or code without an error.
    Completed = "COMPLETED", Succeeded;
    /// A command ended with another exit status.
    NonzeroExit = "NONZERO_EXIT", Failed;
    /// A command was ended by a signal that no limit explains.
    Signaled = "SIGNALED", Failed;
    /// Code raised an error.
    Exception = "EXCEPTION", Failed;
    /// It took longer than its timeout, and was ended.
    Timeout = "TIMEOUT", Failed;
    /// The sandbox ran out of memory.
    MemoryLimit = "MEMORY_LIMIT", Failed;
    /// The disk of the sandbox had no room left.
    DiskFull = "DISK_FULL", Failed;
    /// The sandbox could have no more processes.
    PidsLimit = "PIDS_LIMIT", Failed;
    /// A process could have no more open files.
    OpenFilesLimit = "OPEN_FILES_LIMIT", Failed;
    /// It said more than it may, and was ended.
    OutputLimit = "OUTPUT_LIMIT", Failed;
    /// The kernel that ran the code ended, and with it all variables.
    KernelDied = "KERNEL_DIED", Failed;
    /// The sandbox ended or did not answer any more. The code may have run.
    SandboxUnavailable = "SANDBOX_UNAVAILABLE", Failed;
    /// The sandbox would not run it.
    InvalidRequest = "INVALID_REQUEST", Failed;
    /// Somebody asked for its end.
    Cancelled = "CANCELLED", Cancelled;
    /// The server ended while it ran. The code may have run.
    ServerStopped = "SERVER_STOPPED", Interrupted;
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl From<&Outcome> for OutcomeKind {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Exited { code: 0 } => Self::Completed,
            Outcome::Exited { .. } => Self::NonzeroExit,
            Outcome::Signaled { .. } => Self::Signaled,
            Outcome::MemoryLimit { .. } => Self::MemoryLimit,
            Outcome::PidsLimit { .. } => Self::PidsLimit,
            Outcome::DiskFull { .. } | Outcome::InodesFull { .. } => Self::DiskFull,
            Outcome::OpenFilesLimit { .. } => Self::OpenFilesLimit,
            Outcome::OutputLimit { .. } => Self::OutputLimit,
            Outcome::Timeout { .. } => Self::Timeout,
            Outcome::LifetimeEnded { .. }
            | Outcome::Killed
            | Outcome::ClientGone
            | Outcome::Crashed { .. } => Self::SandboxUnavailable,
        }
    }
}
