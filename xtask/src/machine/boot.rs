//! Starting QEMU, reading its console, and making sure that it ends.

use std::path::Path;

use super::Machine;
use crate::failure::{Failure, Outcome};
use crate::program::Program;

/// What the machine says last.
const EXIT: &str = "ATOLL-MACHINE-EXIT ";

/// How long a machine may run.
const LIFETIME_SECONDS: u32 = 30 * 60;

/// Boots with the two disks; each line of the console goes to `line`.
pub(super) fn boot(machine: &Machine, payload: &Path, mut line: impl FnMut(&str)) -> Outcome<u8> {
    // Disks are opened as snapshots: what the machine writes is thrown away with it.
    let disk = |image: &Path| format!("if=virtio,format=raw,snapshot=on,file={}", image.display());
    let qemu = Program::new("timeout")
        .args([
            "--foreground",
            "--kill-after=10",
            &LIFETIME_SECONDS.to_string(),
            "qemu-system-x86_64",
        ])
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "3072",
        ])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ])
        .args([
            "-nic",
            "user,model=virtio-net-pci",
            "-device",
            "virtio-rng-pci",
        ])
        .args(["-append", "console=ttyS0 quiet loglevel=1 panic=-1"])
        .arg("-kernel")
        .arg(machine.kernel.image())
        .arg("-initrd")
        .arg(&machine.initramfs)
        .args(["-drive", &disk(&machine.root), "-drive", &disk(payload)]);
    let mut exit = None;
    let status = qemu.each_line(|text| match text.strip_prefix(EXIT) {
        Some(code) => exit = code.trim().parse().ok(),
        None => line(text),
    })?;
    match (exit, status.code()) {
        (Some(exit), _) => Ok(exit),
        (None, Some(124 | 137)) => {
            Err(Failure::new(format!("the machine had not finished after {} minutes", LIFETIME_SECONDS / 60)))
        }
        (None, _) => Err(Failure::new(format!("the machine ended ({status}) before its command did"))
            .hint("its last lines above say why; it has 3 GiB of memory, and a kernel that panics ends it")),
    }
}
