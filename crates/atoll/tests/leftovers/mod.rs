//! What of Atoll is on this host without anybody who answers for it.
//!
//! Every host object belongs to a lease whose owner lives. Whatever does not
//! is an orphan. Other sandboxes may come and go meanwhile, so an orphan only
//! counts when it stays.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the kernel may take to forget what nobody holds any more.
const SETTLE_BOUND: Duration = Duration::from_secs(60);

/// Waits until there is no orphan, and fails with a list of those that stay.
pub(crate) fn assert_none(home: &Path, context: &str) {
    let start = Instant::now();
    loop {
        let found = orphans(home);
        if found.is_empty() {
            return;
        }
        assert!(
            start.elapsed() < SETTLE_BOUND,
            "{context}: left on the host: {found:#?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Orphans of any home, and everything that still belongs to `home`.
pub(crate) fn orphans(home: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let candidates = candidates(home);
    let leases = leases();
    for (object, key) in candidates {
        if !leases
            .iter()
            .any(|lease| lease.alive && lease.keys.contains(&key))
        {
            found.insert(object);
        }
    }
    for lease in leases {
        if lease.home == home {
            found.insert(format!("lease of slot {} ({})", lease.slot, lease.sandbox));
        }
    }
    found
}

struct Lease {
    slot: String,
    sandbox: String,
    home: std::path::PathBuf,
    alive: bool,
    keys: BTreeSet<String>,
}

fn leases() -> Vec<Lease> {
    let mut leases = Vec::new();
    for entry in fs::read_dir("/run/atoll/slots")
        .into_iter()
        .flatten()
        .flatten()
    {
        let slot = entry.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(entry.path().join("lease.json")).unwrap_or_default();
        let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) else {
            continue;
        };
        let sandbox = value["sandbox"].as_str().unwrap_or_default().to_owned();
        let pid = value["owner"]["pid"].as_i64().unwrap_or(0);
        let mut keys =
            BTreeSet::from([sandbox.clone(), format!("atl{slot}"), format!("slot{slot}")]);
        if !value["network"].is_null() {
            keys.insert("network".to_owned());
        }
        leases.push(Lease {
            slot,
            sandbox,
            home: value["home"].as_str().unwrap_or_default().into(),
            alive: Path::new(&format!("/proc/{pid}")).exists(),
            keys,
        });
    }
    leases
}

/// Host objects with the key that a lease must have to account for them.
fn candidates(home: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts
        .lines()
        .filter(|line| line.contains("/run/atoll") || line.contains(" - overlay atoll "))
    {
        found.push((
            format!("mount {line}"),
            "no mount of a sandbox may be in the host's table".to_owned(),
        ));
    }
    for entry in fs::read_dir("/run/atoll/slots")
        .into_iter()
        .flatten()
        .flatten()
    {
        let slot = entry.file_name().to_string_lossy().into_owned();
        found.push((format!("slot directory {slot}"), format!("slot{slot}")));
    }
    for entry in fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name
            .strip_prefix("atl")
            .is_some_and(|rest| rest.parse::<u16>().is_ok())
        {
            found.push((format!("interface {name}"), name));
        }
    }
    let roots = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for root in roots.chain([Path::new("/sys/fs/cgroup").to_owned()]) {
        for group in fs::read_dir(root.join("atoll"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if group.path().is_dir() {
                let name = group.file_name().to_string_lossy().into_owned();
                let name = name.trim_end_matches("-start").to_owned();
                found.push((format!("cgroup {}", group.path().display()), name));
            }
        }
    }
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing =
            fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim()).starts_with(home) {
            let name = Path::new(backing.trim())
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            found.push((
                format!(
                    "loop device {} of {}",
                    device.file_name().display(),
                    backing.trim()
                ),
                name,
            ));
        }
    }
    for image in fs::read_dir(home.join("disks"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = image.path();
        if path.extension().is_some_and(|extension| extension == "img") {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            found.push((format!("disk image {}", path.display()), name));
        }
    }
    let tables = std::process::Command::new("nft")
        .args(["list", "tables"])
        .output();
    if tables.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(" atoll")) {
        found.push(("nft table atoll".to_owned(), "network".to_owned()));
    }
    found
}

/// Waits until no process started below `directory` is left.
pub(crate) fn wait_for_processes_below(directory: &Path, context: &str) {
    let start = Instant::now();
    loop {
        let left = processes_below(directory);
        if left.is_empty() {
            return;
        }
        assert!(
            start.elapsed() < SETTLE_BOUND,
            "{context}: processes are left: {left:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until no monitor started below `directory` is left; what it forked may be.
pub(crate) fn wait_for_monitors_below(directory: &Path, context: &str) {
    let start = Instant::now();
    let is_monitor = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(9).any(|window| window == b"\0monitor\0")
    };
    while processes_below(directory).iter().any(is_monitor) {
        assert!(
            start.elapsed() < SETTLE_BOUND,
            "{context}: a monitor is left"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Processes started below `directory`, which tests use as working directory.
pub(crate) fn processes_below(directory: &Path) -> Vec<i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let cwd = fs::read_link(entry.path().join("cwd")).ok()?;
            cwd.starts_with(directory).then_some(pid)
        })
        .collect()
}
