//! What tests of the binary share: homes of their own, the command with a
//! time bound, and a look at what is left on the host.
//!
//! A [`TestHome`] fails its test when anything of it is still on the host at
//! its end, so that no test has to ask for that.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "each test binary uses its part, tests fail by panicking, and `json!` is shorter without `&`"
)]

#[path = "../leftovers/mod.rs"]
pub mod leftovers;

pub mod command;
pub mod sandboxes;
pub mod server;
pub mod terminal;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use atoll_engine::Tier;
use serde_json::Value;

pub use command::{Finished, Invocation, Running};

/// What nothing in these tests comes close to taking. `ATOLL_TEST_TIME_FACTOR`
/// stretches it where processors are slow.
pub static BOUND: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(90) * *TIME_FACTOR);

/// By how much processors are slower here.
pub static TIME_FACTOR: LazyLock<u32> = LazyLock::new(|| {
    let factor = std::env::var("ATOLL_TEST_TIME_FACTOR");
    factor.map_or(1, |factor| factor.parse().unwrap())
});

/// The binary under test.
pub fn binary() -> PathBuf {
    std::env::var_os("ATOLL_BIN").map_or_else(|| env!("CARGO_BIN_EXE_atoll").into(), PathBuf::from)
}

/// The tier under test: `ATOLL_TEST_TIER`, or containers.
pub fn tier() -> Tier {
    match std::env::var("ATOLL_TEST_TIER").as_deref() {
        Err(_) | Ok("" | "container") => Tier::Container,
        Ok("gvisor") => Tier::Gvisor,
        Ok(other) => panic!("ATOLL_TEST_TIER is `{other}`: there are no tests for that"),
    }
}

/// The home with the template `base` that all tests share and none changes.
pub fn shared_home() -> PathBuf {
    let home = std::env::var_os("ATOLL_TEST_HOME")
        .expect("run `cargo xtask test`, it builds the template that this test needs");
    PathBuf::from(home).canonicalize().unwrap()
}

/// A home of its own with the templates of the shared one.
pub fn second_home() -> TestHome {
    let home = TestHome::empty();
    for part in ["templates", "layers", "blobs"] {
        symlink(shared_home().join(part), home.path().join(part)).unwrap();
    }
    home
}

/// A home whose catalog, layers and blobs may be changed: only what they
/// hold at first is borrowed, which is `base` and nothing else.
pub fn home_for_builds() -> TestHome {
    let (home, shared) = (TestHome::empty(), shared_home());
    let template = "templates/base.json";
    fs::create_dir(home.path().join("templates")).unwrap();
    fs::copy(shared.join(template), home.path().join(template)).unwrap();
    let template = fs::read_to_string(shared.join(template)).unwrap();
    // A layer is named by its digest in the template, a blob in the record of its layer.
    let mut records = String::new();
    borrow(&shared, &home, "layers", |name| {
        let digest = name.trim_start_matches("sha256-");
        template.contains(digest.trim_end_matches(".json"))
    });
    for entry in fs::read_dir(home.path().join("layers")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "json") {
            records.push_str(&fs::read_to_string(entry.path()).unwrap());
        }
    }
    borrow(&shared, &home, "blobs/sha256", |name| {
        records.contains(name)
    });
    home
}

/// Links what is wanted of a directory of one home into another.
fn borrow(shared: &Path, home: &TestHome, part: &str, is_wanted: impl Fn(&str) -> bool) {
    fs::create_dir_all(home.path().join(part)).unwrap();
    let mut borrowed = 0;
    for entry in fs::read_dir(shared.join(part)).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if is_wanted(&name) {
            symlink(entry.path(), home.path().join(part).join(name)).unwrap();
            borrowed += 1;
        }
    }
    assert!(borrowed > 0, "there is nothing of `base` in `{part}`");
}

/// Names of what is in a directory, in order; none when there is no such directory.
pub fn names_below(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

/// Where `cargo xtask test` puts the clients that are not ours.
pub fn installed_clients() -> PathBuf {
    let beside_the_tests = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("clients");
    let clients = std::env::var_os("ATOLL_TEST_CLIENTS");
    let clients = clients.map_or_else(beside_the_tests, PathBuf::from);
    assert!(
        clients.join("stamp").exists(),
        "there are no clients in `{}`: run `cargo xtask test sdk`, which installs them",
        clients.display()
    );
    clients
}

/// A directory with a home in it; commands run in the directory.
pub struct TestHome {
    directory: tempfile::TempDir,
    work: PathBuf,
    home: PathBuf,
}

impl TestHome {
    /// A home without templates.
    pub fn empty() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("atoll-test-")
            .tempdir()
            .unwrap();
        let work = directory.path().canonicalize().unwrap();
        let home = work.join("home");
        fs::create_dir(&home).unwrap();
        Self {
            directory,
            work,
            home,
        }
    }

    /// The home itself.
    pub fn path(&self) -> &Path {
        &self.home
    }

    /// Where commands run, and where tests put their files.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Writes a file into the working directory.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The command `atoll` with these arguments, not yet started.
    pub fn atoll<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Invocation {
        Invocation::new(self, arguments)
    }

    /// Runs `atoll` to its end, with nothing on its standard input.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Finished {
        self.atoll(arguments).finish()
    }

    /// `atoll run --json` with these arguments: the object it prints.
    pub fn run_json<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Value {
        let mut all = vec![
            OsStr::new("run").to_owned(),
            OsStr::new("--json").to_owned(),
        ];
        all.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        self.run(all).json()
    }

    /// What a line of Bash in a sandbox prints.
    pub fn bash(&self, code: &str) -> Finished {
        self.run(["run", "--lang", "bash", "-c", code])
    }

    /// What a Python program in a sandbox prints.
    pub fn python(&self, code: &str) -> Finished {
        self.run(["run", "--lang", "python", "-c", code])
    }

    /// Lease of the only sandbox of this home, as `lease.json` has it. Waits for it.
    pub fn lease(&self) -> Value {
        eventually("a lease of this home", || self.leases().into_iter().next())
    }

    /// Every lease of this home.
    pub fn leases(&self) -> Vec<Value> {
        let slots = fs::read_dir("/run/atoll/slots").into_iter().flatten();
        slots
            .flatten()
            .filter_map(|slot| fs::read(slot.path().join("lease.json")).ok())
            .filter_map(|text| serde_json::from_slice::<Value>(&text).ok())
            .filter(|lease| lease["home"].as_str() == self.home.to_str())
            .collect()
    }

    /// How every sandbox of this home ended, as its records say.
    pub fn endings(&self) -> Vec<Value> {
        let records = fs::read_dir(self.home.join("sandboxes"))
            .into_iter()
            .flatten();
        records
            .flatten()
            .map(|record| {
                let record: Value =
                    serde_json::from_slice(&fs::read(record.path()).unwrap()).unwrap();
                record["ended"]["outcome"].clone()
            })
            .collect()
    }

    /// Fails when anything of this home stays on the host.
    pub fn assert_nothing_left(&self, context: &str) {
        let is_idle = || leftovers::processes_below(&self.work).is_empty();
        eventually(&format!("{context}: the end of all processes"), || {
            is_idle().then_some(())
        });
        leftovers::assert_none(&self.home, context);
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_nothing_left("at the end of the test");
        }
    }
}

/// Processes of a sandbox, as the host numbers them.
pub fn processes_of(sandbox: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let cgroups = fs::read_to_string(entry.path().join("cgroup")).ok()?;
            cgroups.contains(sandbox).then_some(pid)
        })
        .collect()
}

/// PID 1 of a sandbox, as the host numbers it.
pub fn init_of(sandbox: &str) -> i32 {
    let is_first = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let names = status.lines().find(|line| line.starts_with("NSpid:"));
        names.is_some_and(|line| line.split_whitespace().last() == Some("1"))
    };
    eventually("PID 1 of the sandbox", || {
        processes_of(sandbox).into_iter().find(is_first)
    })
}

/// Asks until there is an answer; fails when none comes within [`BOUND`].
pub fn eventually<T>(what: &str, mut question: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = question() {
            return answer;
        }
        assert!(start.elapsed() < *BOUND, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
