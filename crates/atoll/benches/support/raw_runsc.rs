//! Raw `runsc` beside Atoll, on the root file system of a sandbox of its.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, WaitOptions, waitpid};

use super::{Lease, Result};

/// How `runsc` is called, without Atoll.
pub struct RawRunsc {
    runsc: PathBuf,
    flags: Vec<String>,
    /// In whose mount namespace the root file system is.
    monitor: i32,
    directory: tempfile::TempDir,
}

impl RawRunsc {
    /// On the root file system of the sandbox of `lease`. What `runsc` leaves running comes to
    /// this process, which waits for it: otherwise `runsc` would wait for a reaper itself when
    /// it deletes.
    pub fn beside(lease: &Lease, runsc: &Path, flags: &[&str]) -> Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let directory = tempfile::tempdir()?;
        for name in ["state", "changes"] {
            fs::create_dir(directory.path().join(name))?;
        }
        Ok(Self {
            runsc: runsc.to_owned(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            monitor: lease.monitor,
            directory,
        })
    }

    /// A place for a bundle.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Waits for the processes of a sandbox, each in a thread of its own.
    pub fn reap(&self, name: &str) -> Result<Vec<JoinHandle<()>>> {
        let state = self.path().join("state");
        let text = fs::read(state.join(format!("{name}_sandbox:{name}.state")))?;
        let value: serde_json::Value = serde_json::from_slice(&text)?;
        let pids = [&value["sandbox"]["pid"], &value["goferPid"]];
        pids.into_iter()
            .map(|pid| {
                let pid = i32::try_from(pid.as_i64().ok_or("no pid")?)?;
                let pid = Pid::from_raw(pid).ok_or("pid 0")?;
                Ok(std::thread::spawn(move || {
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                }))
            })
            .collect()
    }

    /// Calls `runsc` where the root file system is mounted, in a network namespace in which
    /// there is nothing.
    pub fn call(&self, arguments: &[&str]) -> Result<()> {
        let namespace = fs::File::open(format!("/proc/{}/ns/mnt", self.monitor))?;
        let log = self.path().join("log");
        let output = fs::File::create(&log)?;
        let changes = self.path().join("changes");
        let mut command = Command::new(&self.runsc);
        command
            .arg("--root")
            .arg(self.path().join("state"))
            .args(["--platform=systrap", "--ignore-cgroups"])
            .args(&self.flags)
            .arg(format!("--overlay2=root:dir={}", changes.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        // SAFETY: `setns` and `unshare` are plain system calls, safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
                rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?;
                rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET)?;
                Ok(())
            });
        }
        if command.status()?.success() {
            Ok(())
        } else {
            Err(format!("runsc {arguments:?}: {}", fs::read_to_string(log)?).into())
        }
    }
}
