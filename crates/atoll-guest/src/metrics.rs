//! `GET /metrics`: what the sandbox uses, as it can see it from inside.
//!
//! The sandbox's own cgroup says it best, where it is mounted. Elsewhere
//! `/proc` does, which in a container speaks of the whole host and in gVisor
//! says zero for the processors. What cannot be known is 0: this never fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use serde::Serialize;

/// Shortest time over which use of the processors is measured.
const SAMPLE_TIME: Duration = Duration::from_millis(100);

/// A limit beyond this is none: version 1 cgroups write a huge number.
const MEMORY_LIMIT_MAX: u64 = 1 << 60;

/// Body of the answer. Bytes where no name says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Metrics {
    /// Seconds since 1970.
    ts: u64,
    cpu_count: u64,
    /// Of all processors together, up to 100.
    cpu_used_pct: f64,
    mem_total: u64,
    /// Without what the kernel keeps only as long as nobody needs it.
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Remembers the call before, since when the next one measures.
#[derive(Debug)]
pub(crate) struct Meter {
    sources: Sources,
    last: Mutex<Option<Measured>>,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    at: Instant,
    work: Work,
    /// Hundredths of a percent.
    used: u32,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            sources: Sources {
                root: PathBuf::from("/"),
            },
            last: Mutex::new(None),
        }
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(meter): State<Arc<Meter>>) -> Json<Metrics> {
    if meter.measure().is_none() {
        tokio::time::sleep(SAMPLE_TIME).await;
    }
    let used = meter.measure().unwrap_or_default();
    let memory = meter.sources.memory();
    let disk = disk();
    Json(Metrics {
        ts: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |passed| passed.as_secs()),
        cpu_count: meter.sources.processors_thousandths().div_ceil(1000),
        cpu_used_pct: f64::from(used) / 100.0,
        mem_total: memory.total,
        mem_used: memory.used,
        mem_cache: memory.cache,
        mem_total_mib: memory.total >> 20,
        mem_used_mib: memory.used >> 20,
        disk_used: disk.used,
        disk_total: disk.total,
    })
}

impl Meter {
    /// Use of the processors since the call before, in hundredths of a
    /// percent; `None` when there was none.
    fn measure(&self) -> Option<u32> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(last) = *last
            && now.duration_since(last.at) < SAMPLE_TIME
        {
            return Some(last.used);
        }
        let work = self.sources.work(now);
        let used = last.map(|last| work.since(last.work));
        *last = Some(Measured {
            at: now,
            work,
            used: used.unwrap_or_default(),
        });
        used
    }
}

/// Work of the processors, in a unit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Work {
    done: u64,
    possible: u64,
}

impl Work {
    /// Hundredths of a percent of what was possible.
    fn since(self, before: Self) -> u32 {
        let possible = u128::from(self.possible.saturating_sub(before.possible));
        let done = u128::from(self.done.saturating_sub(before.done));
        let used = (done * 10_000).checked_div(possible).unwrap_or(0);
        u32::try_from(used.min(10_000)).unwrap_or(0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Use {
    total: u64,
    used: u64,
    cache: u64,
}

/// Where the numbers come from.
#[derive(Debug)]
struct Sources {
    root: PathBuf,
}

impl Sources {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Memory of the cgroup when it has a limit, else of the machine.
    fn memory(&self) -> Use {
        self.cgroup_memory()
            .or_else(|| self.machine_memory())
            .unwrap_or_default()
    }

    fn cgroup_memory(&self) -> Option<Use> {
        let version2 = || {
            let total = self.number(&cgroup2("memory.max"))?;
            let current = self.number(&cgroup2("memory.current"))?;
            let statistics = self.text(&cgroup2("memory.stat"));
            Some((total, current, field(&statistics, "file")))
        };
        let version1 = || {
            let file = |name: &str| format!("sys/fs/cgroup/memory/memory.{name}");
            let total = self.number(&file("limit_in_bytes"))?;
            let current = self.number(&file("usage_in_bytes"))?;
            Some((total, current, field(&self.text(&file("stat")), "cache")))
        };
        let (total, current, cache) = version2().or_else(version1)?;
        (total < MEMORY_LIMIT_MAX).then(|| Use {
            total,
            used: current.saturating_sub(cache.unwrap_or(0)),
            cache: cache.unwrap_or(0),
        })
    }

    fn machine_memory(&self) -> Option<Use> {
        let text = self.text("proc/meminfo");
        let bytes = |name| field(&text, name).map(|kib| kib.saturating_mul(1024));
        let total = bytes("MemTotal:")?;
        let cache = bytes("Cached:").unwrap_or(0);
        let unused = bytes("MemFree:").unwrap_or(0) + bytes("Buffers:").unwrap_or(0) + cache;
        Some(Use {
            total,
            used: total.saturating_sub(unused),
            cache,
        })
    }

    /// Work of the cgroup, else of the machine.
    fn work(&self, now: Instant) -> Work {
        let cgroup = field(&self.text(&cgroup2("cpu.stat")), "usage_usec").or_else(|| {
            let nanoseconds = self.number("sys/fs/cgroup/cpuacct/cpuacct.usage")?;
            Some(nanoseconds / 1000)
        });
        match cgroup {
            Some(done) => Work {
                done,
                possible: microseconds(now).saturating_mul(self.processors_thousandths()) / 1000,
            },
            None => self.machine_work().unwrap_or_default(),
        }
    }

    fn machine_work(&self) -> Option<Work> {
        let text = self.text("proc/stat")?;
        let line = text.lines().find(|line| line.starts_with("cpu "))?;
        // Of the ten numbers the last two are part of the first two.
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .map(|number| number.parse().unwrap_or(0))
            .collect();
        let possible: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Some(Work {
            done: possible - idle,
            possible,
        })
    }

    /// Processors that the sandbox may use, in thousandths.
    fn processors_thousandths(&self) -> u64 {
        let all = available_parallelism().map_or(0, |count| count.get() as u64) * 1000;
        let quota = || {
            let text = self.text(&cgroup2("cpu.max"))?;
            let (quota, period) = text.trim().split_once(' ')?;
            Some((quota.parse().ok()?, period.parse().ok()?))
        };
        let quota_version1 = || {
            let quota = self.number("sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
            let period = self.number("sys/fs/cgroup/cpu/cpu.cfs_period_us")?;
            Some((quota, period))
        };
        let limit = quota()
            .or_else(quota_version1)
            .and_then(|(quota, period): (u64, u64)| quota.saturating_mul(1000).checked_div(period));
        match limit {
            Some(limit) if limit > 0 && (limit < all || all == 0) => limit,
            Some(_) | None => all,
        }
    }
}

/// A file of the sandbox's own cgroup, version 2.
fn cgroup2(file: &str) -> String {
    format!("sys/fs/cgroup/{file}")
}

/// The number after a name at the start of a line.
fn field(text: &Option<String>, name: &str) -> Option<u64> {
    text.as_deref()?.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

/// Since an arbitrary moment that stays the same.
fn microseconds(now: Instant) -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let passed = now.saturating_duration_since(*START.get_or_init(|| now));
    u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
}

fn disk() -> Use {
    let Ok(disk) = rustix::fs::statvfs(Path::new("/")) else {
        return Use::default();
    };
    Use {
        total: disk.f_blocks.saturating_mul(disk.f_frsize),
        used: disk
            .f_blocks
            .saturating_sub(disk.f_bfree)
            .saturating_mul(disk.f_frsize),
        cache: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> (Sources, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = place.path().to_owned();
        (Sources { root }, place)
    }

    const PROC: [(&str, &str); 2] = [
        (
            "proc/meminfo",
            "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 700 kB\nBuffers: 100 kB\nCached: 200 kB\n",
        ),
        (
            "proc/stat",
            "cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n",
        ),
    ];

    #[test]
    fn the_cgroup_says_it_best() {
        let version2 = [
            ("sys/fs/cgroup/memory.max", "1048576\n"),
            ("sys/fs/cgroup/memory.current", "500000\n"),
            ("sys/fs/cgroup/memory.stat", "anon 1\nfile 200000\n"),
            ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
            ("sys/fs/cgroup/cpu.stat", "usage_usec 77\n"),
        ];
        let version1 = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "cache 200000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpuacct/cpuacct.usage", "77000\n"),
        ];
        for files in [&version2[..], &version1[..]] {
            let (sources, _place) = sources(&[files, &PROC].concat());
            assert_eq!(
                sources.memory(),
                Use {
                    total: 1_048_576,
                    used: 300_000,
                    cache: 200_000
                }
            );
            assert_eq!(sources.processors_thousandths(), 500);
            assert_eq!(sources.work(Instant::now()).done, 77);
        }
    }

    #[test]
    fn without_a_limit_the_machine_speaks() {
        let unlimited2 = [
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "500000\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ];
        let unlimited1 = [
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        for files in [&[][..], &unlimited2[..], &unlimited1[..]] {
            let (sources, _place) = sources(&[files, &PROC].concat());
            assert_eq!(
                sources.memory(),
                Use {
                    total: 1000 << 10,
                    used: 400 << 10,
                    cache: 200 << 10
                }
            );
            assert_eq!(
                sources.work(Instant::now()),
                Work {
                    done: 81,
                    possible: 531
                }
            );
            assert!(sources.processors_thousandths() >= 1000);
        }
    }

    #[test]
    fn what_cannot_be_known_is_zero() {
        let (none, _place) = sources(&[]);
        assert_eq!(none.memory(), Use::default());
        assert_eq!(none.work(Instant::now()), Work::default());
        let (broken, _place) = sources(&[
            ("proc/meminfo", "MemTotal: lots\n"),
            ("proc/stat", "cpu  a b c\n"),
            ("sys/fs/cgroup/cpu.max", "1 0\n"),
        ]);
        assert_eq!(broken.memory(), Use::default());
        assert_eq!(broken.work(Instant::now()), Work::default());
        assert!(broken.processors_thousandths() >= 1000);
    }

    #[test]
    fn use_is_between_nothing_and_all() {
        let work = |done, possible| Work { done, possible };
        assert_eq!(work(150, 400).since(work(100, 200)), 2_500);
        assert_eq!(work(900, 400).since(work(100, 200)), 10_000);
        assert_eq!(work(1, 200).since(work(100, 200)), 0);
        assert_eq!(work(0, 0).since(work(0, 0)), 0);
    }
}
