//! What Atoll has on this host: mounts, links, tables, cgroups, leases, loop
//! devices and processes.
//!
//! Taken before and after the tests; a difference is something that a test,
//! or Atoll, left behind. Looking takes root, so without it this program
//! starts itself once more through `sudo` and reads what that prints.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Context as _, Outcome};
use crate::program::{Program, is_root};

/// Objects, each as one line that a person can act on.
pub(crate) type Objects = BTreeSet<String>;

/// How long the last sandboxes may take to go after the tests have ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// `cargo xtask leftovers`: prints what is there.
pub(crate) fn list() -> Outcome<ExitCode> {
    for object in observe()? {
        println!("{object}");
    }
    Ok(ExitCode::SUCCESS)
}

/// All objects that are there now.
pub(crate) fn observe() -> Outcome<Objects> {
    if !is_root() {
        let program =
            std::env::current_exe().context(|| "finding this program's own file".to_owned())?;
        let homes = std::env::var_os("ATOLL_TEST_HOME").unwrap_or_default();
        let output = Program::root(program)
            .env("ATOLL_TEST_HOME", homes)
            .arg("leftovers")
            .read()?;
        return Ok(output.lines().map(str::to_owned).collect());
    }
    let mut objects = Objects::new();
    objects.extend(mounts());
    objects.extend(links());
    objects.extend(tables());
    objects.extend(cgroups());
    objects.extend(leases());
    objects.extend(loop_devices());
    objects.extend(processes());
    Ok(objects)
}

/// What is there now and was not there before, once nothing more goes away by itself.
pub(crate) fn since(before: &Objects) -> Outcome<Objects> {
    let end = Instant::now() + PATIENCE;
    loop {
        let left: Objects = observe()?.difference(before).cloned().collect();
        if left.is_empty() || Instant::now() >= end {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn mounts() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(atoll_mount).collect()
}

/// The mount point of a line of `mountinfo`, if it is one of Atoll's.
fn atoll_mount(line: &str) -> Option<String> {
    let mut fields = line.split(' ');
    let point = fields.nth(4)?;
    let source = fields
        .skip_while(|field| *field != "-")
        .nth(2)
        .unwrap_or_default();
    (point.contains("atoll") || source.contains("atoll")).then(|| format!("mount {point}"))
}

fn links() -> Vec<String> {
    names(Path::new("/sys/class/net"))
        .filter(|name| name.starts_with("atl"))
        .map(|name| format!("link {name}"))
        .collect()
}

fn tables() -> Vec<String> {
    let tables = Program::new("nft")
        .args(["list", "tables"])
        .command()
        .output();
    let text = tables
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    text.lines()
        .filter(|line| line.contains("atoll"))
        .map(|line| format!("nft {line}"))
        .collect()
}

fn cgroups() -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = pending.pop() {
        for child in directories(&directory) {
            if child.to_string_lossy().contains("atoll") {
                found.push(format!("cgroup {}", child.display()));
            }
            pending.push(child);
        }
    }
    found
}

fn leases() -> Vec<String> {
    names(Path::new("/run/atoll/slots"))
        .map(|name| format!("lease /run/atoll/slots/{name}"))
        .collect()
}

fn loop_devices() -> Vec<String> {
    let home = super::home().ok();
    names(Path::new("/sys/block"))
        .filter_map(|name| {
            let backing =
                fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
            let backing = backing.trim();
            let ours = backing.contains("atoll")
                || home
                    .as_ref()
                    .is_some_and(|home| Path::new(backing).starts_with(home));
            ours.then(|| format!("loop /dev/{name} of {backing}"))
        })
        .collect()
}

fn processes() -> Vec<String> {
    names(Path::new("/proc"))
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|pid| {
            let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let is_atoll = program.file_name()?.to_string_lossy().starts_with("atoll");
            is_atoll.then(|| format!("process {pid} of {}", program.display()))
        })
        .collect()
}

fn names(directory: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
}

fn directories(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_place_or_its_source() {
        let by_place = "61 28 0:41 / /run/atoll/slots/3/rootfs rw,relatime shared:1 - overlay overlay rw,lowerdir+=/x";
        let by_source = "62 28 7:1 / /mnt rw,relatime - ext4 /var/lib/atoll/disks/a rw";
        let other = "63 28 0:5 / /proc rw,nosuid shared:12 - proc proc rw";
        assert_eq!(
            atoll_mount(by_place).as_deref(),
            Some("mount /run/atoll/slots/3/rootfs")
        );
        assert_eq!(atoll_mount(by_source).as_deref(), Some("mount /mnt"));
        assert_eq!(atoll_mount(other), None);
    }
}
