//! A machine with cgroup v2, whatever the host has: Debian's cloud kernel
//! under QEMU, emulated, so that no KVM is needed.
//!
//! Nothing is installed on the host besides QEMU. Kernel, root file system
//! and what is to be run are made below `target/machine`:
//!
//! ```text
//! kernel/         unpacked packages: kernel with its modules, busybox
//! initramfs.img   busybox and the modules that reach a virtio disk
//! root.img        /dev/vda: a small Debian; made once, never written to
//! payload.img     /dev/vdb, mounted at /machine: the command and its files
//! ```
//!
//! The machine runs the payload's command on its serial console, prints
//! `ATOLL-MACHINE-EXIT <status>` and powers off.

mod boot;
mod initramfs;
mod kernel;
mod payload;
mod root;
pub(crate) mod suite;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::failure::{Context as _, Outcome};
use crate::packages;
use crate::program::Program;
use crate::test;
use crate::workspace;
use kernel::Kernel;
pub(crate) use payload::Payload;

/// Where the payload is mounted inside.
pub(crate) const INSIDE: &str = "/machine";

/// A machine that can be started as often as wanted; each start is fresh.
pub(crate) struct Machine {
    kernel: Kernel,
    initramfs: PathBuf,
    root: PathBuf,
}

impl Machine {
    /// Makes what is not there yet.
    pub(crate) fn prepare() -> Outcome<Self> {
        let directory = workspace::target().join("machine");
        fs::create_dir_all(&directory).context(|| format!("making `{}`", directory.display()))?;
        let kernel = Kernel::fetch(&directory.join("kernel"))?;
        let root = root::make(&directory, &kernel)?;
        let initramfs = initramfs::make(&directory, &kernel)?;
        Ok(Self {
            kernel,
            initramfs,
            root,
        })
    }

    /// Runs a payload, hands over each line of the console, and returns the command's exit status.
    pub(crate) fn run(&self, payload: &Payload, line: impl FnMut(&str)) -> Outcome<u8> {
        let image = payload.pack(&workspace::target().join("machine"), &self.kernel)?;
        boot::boot(self, &image, line)
    }
}

/// What `cargo xtask machine` runs when nothing is asked for.
const INTRODUCTION: &str = "uname -r; stat -fc %T /sys/fs/cgroup; \
    cat /sys/fs/cgroup/cgroup.controllers; nproc; free -m";

/// `cargo xtask machine`: runs a command in the machine and passes its status on.
/// `atoll` and the tests' home are there if they were built before.
pub(crate) fn show(command: &[String]) -> Outcome<ExitCode> {
    packages::install(&[packages::MACHINE])?;
    let script = if command.is_empty() {
        INTRODUCTION.to_owned()
    } else {
        command.join(" ")
    };
    let mut payload = Payload::new(format!(
        "export PATH={INSIDE}:$PATH ATOLL_HOME={INSIDE}/home\n{script}"
    ));
    let home = test::home()?;
    if test::binary().exists() && home.join("templates").exists() {
        payload.atoll(&home)?;
    }
    let status = Machine::prepare()?.run(&payload, |line| println!("{line}"))?;
    Ok(ExitCode::from(status))
}

/// Removes a tree that root may have made.
fn remove(path: &Path) -> Outcome<()> {
    Program::root("rm")
        .args(["--recursive", "--force", "--one-file-system"])
        .arg(path)
        .run()
}

/// Makes an ext4 image out of a directory; sparse, so that `mebibytes` may be generous.
fn pack(directory: &Path, image: &Path, mebibytes: u64) -> Outcome<()> {
    let fresh = image.with_extension("new");
    let file = fs::File::create(&fresh).context(|| format!("making `{}`", fresh.display()))?;
    file.set_len(mebibytes << 20)
        .context(|| format!("sizing `{}`", fresh.display()))?;
    Program::root("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-d"])
        .arg(directory)
        .arg(&fresh)
        .run()?;
    fs::rename(&fresh, image).context(|| format!("naming `{}`", image.display()))
}
