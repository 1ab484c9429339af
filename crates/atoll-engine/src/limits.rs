//! What a sandbox may use, and the typed outcome when it wants more.

use std::fmt;

use serde::{Deserialize, Serialize};

const MIB: u64 = 1024 * 1024;

/// Upper bounds of one sandbox. Every one of them is enforced by the kernel
/// or by the host, never by the guest's good will.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory including page cache that cannot be reclaimed, in MiB.
    pub memory_mib: u64,
    /// CPU time per second of wall time, in thousandths of a core.
    pub cpu_millis: u64,
    /// Processes and threads at once.
    pub pids: u64,
    /// Size of the writable disk, in MiB.
    pub disk_mib: u64,
    /// Files and directories on the writable disk; `None` scales with its size.
    pub inodes: Option<u64>,
    /// Open files of one process.
    pub open_files: u64,
    /// Size of `/dev/shm`, in MiB.
    pub shm_mib: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: 1024,
            cpu_millis: 2000,
            pids: 1024,
            disk_mib: 4096,
            inodes: None,
            open_files: 16384,
            shm_mib: 64,
        }
    }
}

/// A limit that no sandbox can run under.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{limit} = {value} is outside {minimum}..={maximum}")]
pub struct LimitsError {
    /// Name of the limit as the CLI spells it.
    pub limit: &'static str,
    /// What was asked.
    pub value: u64,
    /// Smallest usable value.
    pub minimum: u64,
    /// Largest usable value.
    pub maximum: u64,
}

impl Limits {
    /// The largest values of any sandbox.
    pub const LARGEST: Self = Self {
        memory_mib: 16 * 1024 * 1024,
        cpu_millis: 1_024_000,
        pids: 4_194_304,
        disk_mib: 16 * 1024 * 1024,
        inodes: Some(u32::MAX as u64),
        open_files: 1_048_576,
        shm_mib: 16 * 1024 * 1024,
    };

    /// Refuses values with which no sandbox could start, before anything is made.
    ///
    /// # Errors
    /// The first limit that is out of range.
    pub fn validate(&self) -> Result<(), LimitsError> {
        self.validate_within(&Self::LARGEST)
    }

    /// The same, and refuses what is larger than `largest`.
    ///
    /// # Errors
    /// The first limit that is out of range.
    pub fn validate_within(&self, largest: &Self) -> Result<(), LimitsError> {
        let least_inodes = 256;
        let rows = [
            ("memory (MiB)", self.memory_mib, 16, largest.memory_mib),
            ("cpus (1/1000)", self.cpu_millis, 10, largest.cpu_millis),
            ("pids", self.pids, 8, largest.pids),
            ("disk (MiB)", self.disk_mib, 16, largest.disk_mib),
            (
                "inodes",
                self.inodes.unwrap_or(least_inodes),
                least_inodes,
                largest.inodes.unwrap_or(u64::from(u32::MAX)),
            ),
            ("open files", self.open_files, 64, largest.open_files),
            ("shm (MiB)", self.shm_mib, 1, largest.shm_mib),
        ];
        for (limit, value, minimum, maximum) in rows {
            if value < minimum || value > maximum {
                return Err(LimitsError {
                    limit,
                    value,
                    minimum,
                    maximum,
                });
            }
        }
        Ok(())
    }

    /// Of each limit the larger one of both.
    #[must_use]
    pub fn or_larger(&self, other: &Self) -> Self {
        Self {
            memory_mib: self.memory_mib.max(other.memory_mib),
            cpu_millis: self.cpu_millis.max(other.cpu_millis),
            pids: self.pids.max(other.pids),
            disk_mib: self.disk_mib.max(other.disk_mib),
            inodes: self.inodes.max(other.inodes),
            open_files: self.open_files.max(other.open_files),
            shm_mib: self.shm_mib.max(other.shm_mib),
        }
    }

    /// Memory limit in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib * MIB
    }
}

/// Most open files that this process may give to a sandbox.
#[must_use]
pub fn open_files_ceiling() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .maximum
        .unwrap_or(u64::MAX)
}

/// Why a sandbox or a command in it ended. Values of limits are part of the
/// outcome, so that a caller can say what to raise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// It ended by itself.
    Exited {
        /// Exit status.
        code: i32,
    },
    /// It was ended by a signal that no limit explains.
    Signaled {
        /// Signal number.
        signal: i32,
    },
    /// The kernel ended a process because memory ran out.
    MemoryLimit {
        /// The limit in MiB.
        limit_mib: u64,
    },
    /// A process could not be made because the limit was reached.
    PidsLimit {
        /// Processes and threads allowed.
        limit: u64,
    },
    /// The writable disk had no free block left.
    DiskFull {
        /// The limit in MiB.
        limit_mib: u64,
    },
    /// The writable disk had no free inode left.
    InodesFull {
        /// Files and directories allowed.
        limit: u64,
    },
    /// A process had no file descriptor left.
    OpenFilesLimit {
        /// Open files allowed per process.
        limit: u64,
    },
    /// More output than the caller wanted to take.
    OutputLimit {
        /// Bytes of output allowed.
        limit_bytes: u64,
    },
    /// A command ran longer than its timeout.
    Timeout {
        /// The timeout in milliseconds.
        limit_ms: u64,
    },
    /// The sandbox reached the end of its lifetime.
    LifetimeEnded {
        /// The lifetime in milliseconds.
        limit_ms: u64,
    },
    /// Somebody asked for the end.
    Killed,
    /// The client to which the sandbox was bound went away.
    ClientGone,
    /// PID 1 of the sandbox ended although nobody asked for it.
    Crashed {
        /// What was seen.
        detail: String,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(out, "exited with status {code}"),
            Self::Signaled { signal } => write!(out, "ended by signal {signal}"),
            Self::MemoryLimit { limit_mib } => {
                write!(out, "memory limit of {limit_mib} MiB reached")
            }
            Self::PidsLimit { limit } => {
                write!(out, "limit of {limit} processes and threads reached")
            }
            Self::DiskFull { limit_mib } => write!(out, "disk limit of {limit_mib} MiB reached"),
            Self::InodesFull { limit } => {
                write!(out, "limit of {limit} files and directories reached")
            }
            Self::OpenFilesLimit { limit } => {
                write!(out, "limit of {limit} open files per process reached")
            }
            Self::OutputLimit { limit_bytes } => {
                write!(out, "output limit of {limit_bytes} bytes reached")
            }
            Self::Timeout { limit_ms } => {
                write!(out, "timeout of {} s reached", seconds(*limit_ms))
            }
            Self::LifetimeEnded { limit_ms } => write!(
                out,
                "end of the lifetime of {} s reached",
                seconds(*limit_ms)
            ),
            Self::Killed => write!(out, "killed on request"),
            Self::ClientGone => write!(out, "ended because its client went away"),
            Self::Crashed { detail } => write!(out, "crashed: {detail}"),
        }
    }
}

/// Milliseconds as seconds, without a fraction where there is none.
fn seconds(millis: u64) -> String {
    if millis.is_multiple_of(1000) {
        (millis / 1000).to_string()
    } else {
        format!("{}.{:03}", millis / 1000, millis % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_limits_are_named() {
        let limits = Limits {
            memory_mib: 1,
            ..Limits::default()
        };
        assert_eq!(
            limits.validate().unwrap_err().to_string(),
            "memory (MiB) = 1 is outside 16..=16777216"
        );
        assert_eq!(Limits::default().validate(), Ok(()));
        assert_eq!(Limits::LARGEST.validate(), Ok(()));
    }

    #[test]
    fn what_is_larger_than_allowed_is_named_with_what_is_allowed() {
        let wanted = Limits {
            disk_mib: 5000,
            ..Limits::default()
        };
        assert_eq!(
            wanted
                .validate_within(&Limits::default())
                .unwrap_err()
                .to_string(),
            "disk (MiB) = 5000 is outside 16..=4096"
        );
        let allowed = Limits::default().or_larger(&wanted);
        assert_eq!(wanted.validate_within(&allowed), Ok(()));
    }

    #[test]
    fn outcomes_are_tagged_for_machines_and_readable_for_people() {
        let outcome = Outcome::MemoryLimit { limit_mib: 256 };
        assert_eq!(
            serde_json::to_string(&outcome).unwrap(),
            r#"{"kind":"memory_limit","limit_mib":256}"#
        );
        assert_eq!(outcome.to_string(), "memory limit of 256 MiB reached");
        assert_eq!(
            Outcome::Timeout { limit_ms: 1500 }.to_string(),
            "timeout of 1.500 s reached"
        );
    }
}
