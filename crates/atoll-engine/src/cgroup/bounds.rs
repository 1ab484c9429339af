//! What the kernel is told to enforce for a sandbox, and whether it does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Cgroup, CgroupLayout, ROOT};
use crate::Limits;

/// CPU time is granted per this many microseconds.
pub(crate) const CPU_PERIOD_USEC: u64 = 100_000;

/// Processes of Atoll's own inside a container: PID 1, its threads, one reaper per running command.
const OWN_PIDS: u64 = 24;

/// What gVisor's kernel and its file server take: about 25 MiB before anything
/// runs on them. What they take for a program counts as the program's.
const GVISOR_OWN_MEMORY: u64 = 32 * 1024 * 1024;

/// Tasks of gVisor on the host: so many for itself, and so many for each
/// process inside. A sandbox that cannot get one more hangs as a whole, so
/// these bounds are wide, and the limit of processes is kept inside.
const GVISOR_OWN_PIDS: u64 = 256;
const GVISOR_PIDS_PER_PROCESS: u64 = 3;

/// Controllers that bound, freeze or count.
const CONTROLLERS_V1: [&str; 5] = ["memory", "pids", "cpu", "cpuacct", "freezer"];

/// Numbers for one sandbox's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) memory_bytes: u64,
    pub(crate) pids: u64,
    /// CPU time per [`CPU_PERIOD_USEC`], in microseconds.
    pub(crate) cpu_quota_usec: u64,
}

impl Bounds {
    /// For a container: its processes are the host's.
    pub(crate) fn container(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes(),
            pids: limits.pids + OWN_PIDS,
            cpu_quota_usec: limits.cpu_millis * CPU_PERIOD_USEC / 1000,
        }
    }

    /// For gVisor: its own kernel comes on top.
    pub(crate) fn gvisor(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes() + GVISOR_OWN_MEMORY,
            pids: limits.pids * GVISOR_PIDS_PER_PROCESS + GVISOR_OWN_PIDS,
            ..Self::container(limits)
        }
    }
}

impl Cgroup {
    /// Makes the group with all `bounds` but that of the CPU, nobody in it yet.
    pub(crate) fn make(&self, bounds: &Bounds) -> io::Result<()> {
        self.delegate_controllers();
        for group in self.groups() {
            fs::create_dir_all(&group).map_err(|error| named(&group, &error))?;
        }
        let [memory, pids, _cpu] = self.rows(bounds);
        for (file, value) in [memory, pids] {
            fs::write(&file, value).map_err(|error| named(&file, &error))?;
        }
        let swap = self.swap_file();
        if swap.0.exists() {
            fs::write(&swap.0, swap.1(bounds)).map_err(|error| named(&swap.0, &error))?;
        }
        Ok(())
    }

    /// Bounds the CPU as well, once what had to be started has been: with a
    /// hundredth of one, that alone would take minutes.
    pub(crate) fn bound_cpu(&self, bounds: &Bounds) -> io::Result<()> {
        let [_, _, (file, value)] = self.rows(bounds);
        fs::write(&file, value).map_err(|error| named(&file, &error))
    }

    /// Files to which a process writes `0` in order to be in the group.
    pub(crate) fn doors(&self) -> Vec<PathBuf> {
        self.groups()
            .into_iter()
            .map(|group| group.join("cgroup.procs"))
            .collect()
    }

    fn groups(&self) -> Vec<PathBuf> {
        let mut groups: Vec<PathBuf> = match self.layout {
            CgroupLayout::V1 => CONTROLLERS_V1
                .iter()
                .filter(|controller| Path::new(ROOT).join(controller).exists())
                .map(|controller| self.file(controller, ""))
                .collect(),
            CgroupLayout::V2 => Vec::new(),
        };
        groups.extend(self.unified());
        groups
    }

    /// Files of the kernel and what they should say.
    fn rows(&self, bounds: &Bounds) -> [(PathBuf, String); 3] {
        let (memory, pids) = (bounds.memory_bytes.to_string(), bounds.pids.to_string());
        let quota = bounds.cpu_quota_usec;
        match self.layout {
            CgroupLayout::V1 => [
                (self.file("memory", "memory.limit_in_bytes"), memory),
                (self.file("pids", "pids.max"), pids),
                (self.file("cpu", "cpu.cfs_quota_us"), quota.to_string()),
            ],
            CgroupLayout::V2 => [
                (self.file("", "memory.max"), memory),
                (self.file("", "pids.max"), pids),
                (
                    self.file("", "cpu.max"),
                    format!("{quota} {CPU_PERIOD_USEC}"),
                ),
            ],
        }
    }

    /// Fails unless the kernel enforces exactly `bounds`.
    pub(crate) fn verify(&self, bounds: &Bounds) -> io::Result<()> {
        self.verify_swap(bounds)?;
        for (path, wanted) in self.rows(bounds) {
            let found = fs::read_to_string(&path).map_err(|error| named(&path, &error))?;
            if found.trim() != wanted {
                return Err(differs(&path, &found, &wanted));
            }
        }
        Ok(())
    }

    /// Closes swap on version 2, where not every runtime does.
    pub(crate) fn forbid_swap(&self) -> io::Result<()> {
        let file = self.file("", "memory.swap.max");
        if self.layout == CgroupLayout::V2 && file.exists() {
            fs::write(file, "0")
        } else {
            Ok(())
        }
    }

    /// Where swap is bounded, and what to write there: version 1 counts memory and swap together.
    fn swap_file(&self) -> (PathBuf, fn(&Bounds) -> String) {
        match self.layout {
            CgroupLayout::V1 => (
                self.file("memory", "memory.memsw.limit_in_bytes"),
                |bounds| bounds.memory_bytes.to_string(),
            ),
            CgroupLayout::V2 => (self.file("", "memory.swap.max"), |_| "0".to_owned()),
        }
    }

    /// Memory that goes to swap instead would escape the limit.
    fn verify_swap(&self, bounds: &Bounds) -> io::Result<()> {
        let (path, wanted) = self.swap_file();
        let wanted = wanted(bounds);
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        match fs::read_to_string(&path) {
            Ok(found) if found.trim() == wanted => Ok(()),
            // Without swap accounting, but also without swap.
            Err(_) if swaps.lines().count() <= 1 => Ok(()),
            Ok(found) => Err(differs(&path, &found, &wanted)),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("{}: {error}, and this host swaps", path.display()),
            )),
        }
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn differs(path: &Path, found: &str, wanted: &str) -> io::Error {
    io::Error::other(format!(
        "{} is {} and not {wanted}",
        path.display(),
        found.trim()
    ))
}
