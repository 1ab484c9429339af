//! Why a command ended, from what the host measured rather than from what
//! the guest says of itself.

use atoll_engine::{Limits, Outcome, Stats, Tier};
use atoll_guest_client::ExitStatus;

/// A disk this close to full could not take the next write (bytes).
const DISK_NEARLY_FULL: u64 = 1024 * 1024;
/// How much of the end of standard error is looked at.
pub const EVIDENCE_BYTES: usize = 16 * 1024;

/// What programs say when they cannot have another process or thread.
const PROCESS_REFUSED: [&str; 3] = [
    "resource temporarily unavailable",
    "can't start new thread",
    "cannot fork",
];

/// Turns the end of a command into an outcome that names the limit behind it, if there is one.
///
/// Memory, processes, disk and inodes are judged by counters of the kernel.
/// The kernel counts no refused descriptors, so for those the end of standard
/// error (`evidence`) has to speak; and in a tier with a kernel of its own, so
/// it has for refused processes.
#[must_use]
pub fn explain(
    tier: Tier,
    exit: &ExitStatus,
    stats: &Stats,
    limits: &Limits,
    evidence: &[u8],
) -> Outcome {
    let plain = match *exit {
        ExitStatus::Exited(code) => Outcome::Exited { code },
        ExitStatus::Signaled(signal) => Outcome::Signaled { signal },
    };
    if plain == (Outcome::Exited { code: 0 }) {
        return plain;
    }
    if stats.oom_kills > 0 {
        return Outcome::MemoryLimit {
            limit_mib: limits.memory_mib,
        };
    }
    if stats.pids_refused > 0 {
        return Outcome::PidsLimit { limit: limits.pids };
    }
    if stats.inodes_total > 0 && stats.inodes_free == 0 {
        return Outcome::InodesFull {
            limit: limits.inodes.unwrap_or(stats.inodes_total),
        };
    }
    let evidence = String::from_utf8_lossy(evidence).to_lowercase();
    let nearly_full = stats.disk_total_bytes > 0 && stats.disk_free_bytes < DISK_NEARLY_FULL;
    let complains_in_time = evidence.contains("no space left on device")
        && stats.disk_free_bytes < stats.disk_total_bytes / 10;
    if nearly_full || complains_in_time {
        return Outcome::DiskFull {
            limit_mib: limits.disk_mib,
        };
    }
    let is_counted = tier == Tier::Container;
    if !is_counted && PROCESS_REFUSED.iter().any(|text| evidence.contains(text)) {
        return Outcome::PidsLimit { limit: limits.pids };
    }
    if evidence.contains("too many open files") {
        return Outcome::OpenFilesLimit {
            limit: limits.open_files,
        };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Stats = Stats {
        cpu_usec: 1,
        throttled_usec: 0,
        memory_bytes: 1,
        memory_cache_bytes: 0,
        memory_peak_bytes: 1,
        oom_kills: 0,
        pids: 1,
        pids_refused: 0,
        disk_free_bytes: 1 << 30,
        disk_total_bytes: 4 << 30,
        inodes_free: 1000,
        inodes_total: 2000,
        network: None,
    };

    #[test]
    fn success_is_success_whatever_was_reached_on_the_way() {
        let stats = Stats {
            oom_kills: 1,
            ..FINE
        };
        assert_eq!(
            explain(
                Tier::Container,
                &ExitStatus::Exited(0),
                &stats,
                &Limits::default(),
                b""
            ),
            Outcome::Exited { code: 0 }
        );
    }

    #[test]
    fn limits_are_named_with_their_values() {
        let limits = Limits {
            memory_mib: 64,
            pids: 9,
            disk_mib: 100,
            open_files: 77,
            ..Limits::default()
        };
        let rows = [
            (
                Stats {
                    oom_kills: 1,
                    ..FINE
                },
                "",
                Outcome::MemoryLimit { limit_mib: 64 },
            ),
            (
                Stats {
                    pids_refused: 1,
                    ..FINE
                },
                "",
                Outcome::PidsLimit { limit: 9 },
            ),
            (
                Stats {
                    disk_free_bytes: 0,
                    ..FINE
                },
                "",
                Outcome::DiskFull { limit_mib: 100 },
            ),
            (
                Stats {
                    inodes_free: 0,
                    ..FINE
                },
                "",
                Outcome::InodesFull { limit: 2000 },
            ),
            (
                FINE,
                "OSError: [Errno 24] Too many open files",
                Outcome::OpenFilesLimit { limit: 77 },
            ),
            (FINE, "no space left on device", Outcome::Exited { code: 1 }),
            (FINE, "", Outcome::Exited { code: 1 }),
        ];
        for (stats, evidence, expected) in rows {
            let exit = ExitStatus::Exited(1);
            assert_eq!(
                explain(Tier::Container, &exit, &stats, &limits, evidence.as_bytes()),
                expected
            );
        }
    }

    #[test]
    fn where_the_host_cannot_count_processes_the_program_has_to_speak() {
        let limits = Limits {
            pids: 9,
            ..Limits::default()
        };
        let said = b"bash: fork: retry: Resource temporarily unavailable";
        let explained = |tier| {
            explain(
                tier,
                &ExitStatus::Exited(254),
                &FINE,
                &limits,
                said.as_slice(),
            )
        };
        assert_eq!(explained(Tier::Gvisor), Outcome::PidsLimit { limit: 9 });
        assert_eq!(explained(Tier::Container), Outcome::Exited { code: 254 });
    }
}
