//! Canaries in shared memory, which is the host's and not of any home: their
//! home may be gone, or may never be used again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Where the host has shared memory as files.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";
/// What the names of canaries begin with; the name of their keeper's directory follows.
pub(super) const PREFIX: &str = "atoll-selftest-";
/// Length of that name.
const NAME_CHARACTERS: usize = 32;

/// Removes canaries in `directory` whose keeper does not live any more.
pub(super) fn sweep(directory: &Path) -> io::Result<()> {
    let mut canaries = canaries(directory)?;
    if canaries.is_empty() {
        return Ok(());
    }
    // In this order: a keeper lives before its canary does.
    for process in fs::read_dir("/proc")?.flatten() {
        // Its directory is the last word on a keeper's command line.
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        canaries.retain(|name, _| !words.contains(name.as_str()));
    }
    for path in canaries.into_values() {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Canaries of ours, by the name of their keeper's directory. Anybody may make files there.
fn canaries(directory: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let of_ours = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?.strip_prefix(PREFIX)?;
        let is_name =
            name.len() == NAME_CHARACTERS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let metadata = fs::symlink_metadata(entry.path()).ok()?;
        let is_ours = metadata.is_file() && metadata.uid() == geteuid().as_raw();
        (is_name && is_ours).then(|| (name.to_owned(), entry.path()))
    });
    Ok(of_ours.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn canaries_go_when_their_keeper_is_dead_and_nothing_else_does() {
        let directory = tempfile::tempdir().unwrap();
        let (dead, alive) = ("0".repeat(31) + "a", super::super::random_text().unwrap());
        let others = ["atoll-selftest-short", "somebody-else"].map(str::to_owned);
        let canary = |name: &str| format!("{PREFIX}{name}");
        for name in [canary(&dead), canary(&alive)].iter().chain(&others) {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let link = canary(&("0".repeat(31) + "b"));
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join(&link)).unwrap();
        // It has the words of a keeper, and waits for the end of its input as one does.
        let mut keeper = Command::new("sh")
            .args(["-c", "echo ready; read line", "keeper"])
            .arg(format!("/gone/selftest/{alive}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Only a program that runs has its words: starting it returns a moment earlier.
        let mut said = [0; 6];
        keeper.stdout.take().unwrap().read_exact(&mut said).unwrap();
        sweep(directory.path()).unwrap();
        let left = || -> BTreeSet<String> {
            let entries = fs::read_dir(directory.path()).unwrap().flatten();
            entries
                .map(|entry| entry.file_name().into_string().unwrap())
                .collect()
        };
        let mut expected = BTreeSet::from([canary(&alive), link]);
        expected.extend(others);
        let kept = left();
        drop(keeper.stdin.take());
        keeper.wait().unwrap();
        assert_eq!(kept, expected);
        sweep(directory.path()).unwrap();
        expected.remove(&canary(&alive));
        assert_eq!(left(), expected);
    }
}
