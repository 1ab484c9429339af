//! The cgroup of a sandbox, on hosts with version 1 controllers (with or
//! without the unified hierarchy beside them) and on version 2.
//!
//! In the container tier the OCI runtime makes the group and writes the limits
//! from the bundle; for gVisor it is done here (`bounds`). This module checks
//! that they took effect, reads what was used, freezes, kills and removes;
//! `pressure` hears when memory or processes run out.

mod bounds;
mod pressure;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::SandboxId;
use crate::host::{HostObject, creates};
use crate::runtime::Stats;

pub(crate) use bounds::{Bounds, CPU_PERIOD_USEC};
pub(crate) use pressure::{MemoryAlarm, ProcessAlarm};

const ROOT: &str = "/sys/fs/cgroup";
/// Parent of every sandbox's group in each hierarchy.
const PARENT: &str = "atoll";
const KILL_BOUND: Duration = Duration::from_secs(10);
/// For so long the kernel is looked at again and again.
const AT_ONCE: Duration = Duration::from_micros(500);
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// How this host arranges its controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupLayout {
    /// One hierarchy per controller, perhaps with the unified one at `unified`.
    V1,
    /// One hierarchy with all controllers.
    V2,
}

impl CgroupLayout {
    /// Controllers that limits need.
    pub(crate) const NEEDED: [&'static str; 3] = ["memory", "cpu", "pids"];

    /// What is mounted at `/sys/fs/cgroup`.
    ///
    /// # Errors
    /// When nothing is.
    pub fn detect() -> io::Result<Self> {
        let kind = rustix::fs::statfs(ROOT)?.f_type;
        Ok(
            if u64::try_from(kind).is_ok_and(|kind| kind == CGROUP2_MAGIC) {
                Self::V2
            } else {
                Self::V1
            },
        )
    }

    /// Controllers that limits need and that this host does not offer.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn missing_controllers(self) -> io::Result<Vec<&'static str>> {
        let offered: Vec<String> = match self {
            Self::V1 => fs::read_dir(ROOT)?
                .flatten()
                .filter(|entry| entry.path().join("cgroup.procs").exists())
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect(),
            Self::V2 => fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"))?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        };
        Ok(Self::NEEDED
            .into_iter()
            .filter(|name| !offered.iter().any(|offer| offer == name))
            .collect())
    }
}

/// The group of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    layout: CgroupLayout,
    name: String,
}

impl Cgroup {
    pub(crate) fn of(sandbox: &SandboxId) -> io::Result<Self> {
        Ok(Self {
            layout: CgroupLayout::detect()?,
            name: format!("{PARENT}/{sandbox}"),
        })
    }

    /// Its absolute path within each hierarchy, as an OCI bundle wants it.
    pub(crate) fn oci_path(&self) -> String {
        format!("/{}", self.name)
    }

    fn file(&self, controller: &str, file: &str) -> PathBuf {
        match self.layout {
            CgroupLayout::V1 => Path::new(ROOT).join(controller).join(&self.name).join(file),
            CgroupLayout::V2 => Path::new(ROOT).join(&self.name).join(file),
        }
    }

    /// The group in every hierarchy of this host, whether or not it exists there.
    fn dirs(&self) -> io::Result<Vec<PathBuf>> {
        Ok(match self.layout {
            CgroupLayout::V1 => fs::read_dir(ROOT)?
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path().join(&self.name))
                .collect(),
            CgroupLayout::V2 => vec![Path::new(ROOT).join(&self.name)],
        })
    }

    fn unified(&self) -> Option<PathBuf> {
        match self.layout {
            CgroupLayout::V1 => {
                let root = Path::new(ROOT).join("unified");
                root.join("cgroup.procs")
                    .exists()
                    .then(|| root.join(&self.name))
            }
            CgroupLayout::V2 => Some(Path::new(ROOT).join(&self.name)),
        }
    }

    /// Runs `work`, which forks, with this process in a group of the sandbox's
    /// (see [`Self::nursery`]), so that what is forked is born there and found even if this
    /// process is killed half-way; then goes back. Where there is a unified
    /// hierarchy it is done there, else in that of the processes.
    pub(crate) fn within<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let nursery = self.nursery();
        let dir = nursery
            .unified()
            .unwrap_or_else(|| nursery.file("pids", ""));
        let (root, own) = nursery.own_group(&dir)?;
        creates(HostObject::Cgroup, || fs::create_dir_all(&dir))?;
        self.delegate_controllers();
        let me = std::process::id().to_string();
        fs::write(dir.join("cgroup.procs"), &me)?;
        let result = work();
        fs::write(root.join(own).join("cgroup.procs"), &me)?;
        result
    }

    /// Where processes of the sandbox are born, and what its cgroup namespace
    /// takes for the root. The sandbox's own group, where that one carries no
    /// limits; else one beside it, because the runtime makes the sandbox's own.
    fn nursery(&self) -> Self {
        let name = match (self.layout, self.unified()) {
            (CgroupLayout::V1, Some(_)) => self.name.clone(),
            (CgroupLayout::V1, None) | (CgroupLayout::V2, _) => format!("{}-start", self.name),
        };
        Self {
            layout: self.layout,
            name,
        }
    }

    /// On version 2 a group has only the controllers that its parents hand down.
    fn delegate_controllers(&self) {
        if self.layout == CgroupLayout::V2 {
            for parent in [Path::new(ROOT).to_owned(), Path::new(ROOT).join(PARENT)] {
                for controller in ["+memory", "+pids", "+cpu"] {
                    // What is missing is found when the limits are read back.
                    let _ = fs::write(parent.join("cgroup.subtree_control"), controller);
                }
            }
        }
    }

    /// Puts `pid` into the unified hierarchy as well, where the runtime left it out.
    pub(crate) fn join_unified(&self, pid: i32) -> io::Result<()> {
        let (CgroupLayout::V1, Some(dir)) = (self.layout, self.unified()) else {
            return Ok(());
        };
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("cgroup.procs"), pid.to_string())
    }

    /// Root of the hierarchy that `dir` is in, and the group of this process in it.
    fn own_group(&self, dir: &Path) -> io::Result<(PathBuf, PathBuf)> {
        let depth = Path::new(&self.name).components().count();
        let root = dir.ancestors().nth(depth).unwrap_or(dir).to_owned();
        let controller = root
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let own = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let matches = match (self.layout, controller.as_str()) {
                (CgroupLayout::V2, _) | (CgroupLayout::V1, "unified") => number == "0",
                (CgroupLayout::V1, name) => controllers.split(',').any(|each| each == name),
            };
            matches.then(|| PathBuf::from(path.trim_start_matches('/')))
        });
        let own = own.ok_or_else(|| io::Error::other("this process is in no cgroup"))?;
        Ok((root, own))
    }

    /// What was used so far. Values a kernel does not tell stay 0.
    pub(crate) fn stats(&self) -> Stats {
        let number = |controller, file| read_number(&self.file(controller, file)).unwrap_or(0);
        let keyed =
            |controller, file, key| read_keyed(&self.file(controller, file), key).unwrap_or(0);
        let counters = self.counters();
        match self.layout {
            CgroupLayout::V1 => Stats {
                throttled_usec: keyed("cpu", "cpu.stat", "throttled_time") / 1000,
                memory_bytes: number("memory", "memory.usage_in_bytes"),
                memory_cache_bytes: keyed("memory", "memory.stat", "total_cache"),
                pids: number("pids", "pids.current"),
                ..counters
            },
            CgroupLayout::V2 => Stats {
                throttled_usec: keyed("", "cpu.stat", "throttled_usec"),
                memory_bytes: number("", "memory.current"),
                memory_cache_bytes: keyed("", "memory.stat", "file"),
                pids: number("", "pids.current"),
                ..counters
            },
        }
    }

    /// Memory that holds no files: what would have to be written to keep it, and a little more.
    pub(crate) fn memory_without_files_bytes(&self) -> u64 {
        let (controller, kinds) = match self.layout {
            CgroupLayout::V1 => ("memory", ["total_rss", "total_shmem"]),
            CgroupLayout::V2 => ("", ["anon", "shmem"]),
        };
        let file = self.file(controller, "memory.stat");
        let sizes = kinds.map(|kind| read_keyed(&file, kind).unwrap_or(0));
        sizes.into_iter().sum()
    }

    /// What only grows: time, the peak of memory, and what was refused or ended. Asked
    /// for around each execution, so nothing is read that the kernel has to add up first.
    pub(crate) fn counters(&self) -> Stats {
        let number = |controller, file| read_number(&self.file(controller, file)).unwrap_or(0);
        let keyed =
            |controller, file, key| read_keyed(&self.file(controller, file), key).unwrap_or(0);
        match self.layout {
            CgroupLayout::V1 => Stats {
                cpu_usec: number("cpuacct", "cpuacct.usage") / 1000,
                memory_peak_bytes: number("memory", "memory.max_usage_in_bytes"),
                oom_kills: keyed("memory", "memory.oom_control", "oom_kill"),
                pids_refused: keyed("pids", "pids.events", "max"),
                ..Stats::default()
            },
            CgroupLayout::V2 => Stats {
                cpu_usec: keyed("", "cpu.stat", "usage_usec"),
                memory_peak_bytes: number("", "memory.peak"),
                oom_kills: keyed("", "memory.events", "oom_kill"),
                pids_refused: keyed("", "pids.events", "max"),
                ..Stats::default()
            },
        }
    }

    /// Stops every process where it stands, and waits until they have.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        let (file, value, done): (PathBuf, &str, Box<dyn Fn() -> bool>) = match self.layout {
            CgroupLayout::V1 => {
                let file = self.file("freezer", "freezer.state");
                let state = file.clone();
                (
                    file,
                    "FROZEN",
                    Box::new(move || {
                        fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN")
                    }),
                )
            }
            CgroupLayout::V2 => {
                let events = self.file("", "cgroup.events");
                (
                    self.file("", "cgroup.freeze"),
                    "1",
                    Box::new(move || read_keyed(&events, "frozen") == Some(1)),
                )
            }
        };
        fs::write(&file, value)?;
        wait_until(KILL_BOUND, done).then_some(()).ok_or_else(|| {
            // Half frozen is neither: let it run again.
            let _ = self.thaw();
            io::Error::new(
                io::ErrorKind::TimedOut,
                "the sandbox could not be frozen in time",
            )
        })
    }

    /// Lets frozen processes run on.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        match self.layout {
            CgroupLayout::V1 => fs::write(self.file("freezer", "freezer.state"), "THAWED"),
            CgroupLayout::V2 => fs::write(self.file("", "cgroup.freeze"), "0"),
        }
    }

    /// Ends every process of the group, frozen or not, and waits until none is left.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.nursery().kill_this()?;
        self.kill_this()
    }

    fn kill_this(&self) -> io::Result<()> {
        let dirs: Vec<PathBuf> = self
            .dirs()?
            .into_iter()
            .filter(|dir| dir.exists())
            .collect();
        if dirs.is_empty() {
            return Ok(());
        }
        let empty = wait_until(KILL_BOUND, || {
            if let Some(unified) = self.unified() {
                // Absent on old kernels and before the group was joined; the walk below covers both.
                let _ = fs::write(unified.join("cgroup.kill"), "1");
            }
            let mut left = false;
            for dir in &dirs {
                for pid in processes_below(dir) {
                    left = true;
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            // Processes frozen by version 1 die only when thawed.
            let _ = self.thaw();
            !left
        });
        empty.then_some(()).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                "processes of the sandbox did not end when killed",
            )
        })
    }

    /// Removes the group from every hierarchy. It must be empty.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for dir in self.dirs()?.into_iter().chain(self.nursery().dirs()?) {
            remove_group(&dir)?;
        }
        Ok(())
    }

    /// Removes the parent of all groups; fails silently while another sandbox is in it.
    pub(crate) fn remove_parent() -> io::Result<()> {
        let parent = Self {
            layout: CgroupLayout::detect()?,
            name: PARENT.to_owned(),
        };
        for dir in parent.dirs()? {
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after `key` in a file of `key number` lines.
fn read_keyed(path: &Path, key: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// Processes in the group at `dir` and in the groups below it.
fn processes_below(dir: &Path) -> Vec<rustix::process::Pid> {
    let mut found = Vec::new();
    if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
        found.extend(
            text.lines()
                .filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?)),
        );
    }
    for child in fs::read_dir(dir).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(processes_below(&child.path()));
        }
    }
    found
}

/// Removes a group and those below it, deepest first. The kernel may still be
/// taking leave of the last process, so a busy group is tried again.
fn remove_group(dir: &Path) -> io::Result<()> {
    for child in fs::read_dir(dir).into_iter().flatten().flatten() {
        if child.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&child.path())?;
        }
    }
    let mut result = Ok(());
    wait_until(KILL_BOUND, || {
        result = fs::remove_dir(dir);
        !matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EBUSY))
    });
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io::Error::new(
            error.kind(),
            format!("{}: {error}", dir.display()),
        )),
        _ => Ok(()),
    }
}

/// Asks until the answer is yes, often at first and then every few milliseconds.
fn wait_until(bound: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(100);
    while !done() {
        let waited = start.elapsed();
        if waited > bound {
            return false;
        }
        // A freeze takes less than the shortest sleep.
        if waited < AT_ONCE {
            std::thread::yield_now();
            continue;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_for_memory_are_told_from_kills_of_groups() {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("memory.events");
        let text = "low 0\nhigh 0\nmax 41\noom 2\noom_kill 1\noom_group_kill 7\n";
        fs::write(&events, text).unwrap();
        assert_eq!(read_keyed(&events, "oom_kill"), Some(1));
        assert_eq!(read_keyed(&events, "oom_kills"), None);
    }
}
