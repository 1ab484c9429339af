//! Atoll is killed with SIGKILL at every point where it makes something on
//! the host, and started again: nothing may be left, and everything must work.
//!
//! The points are not listed here. They are generated from
//! [`HostObject::ALL`], and a point that no scenario reaches fails the test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![cfg(feature = "failpoints")]

mod leftovers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use atoll_engine::Tier;
use atoll_engine::host::HostObject;
use atoll_failpoint::Moment;
use atoll_store::StateWrite;

/// The firewall is made by the first sandbox with a network and removed with
/// the last one, so these tests must not overlap.
static ALONE: Mutex<()> = Mutex::new(());

/// Who dies at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Only the process that reaches it; its client, if any, sees that.
    Alone,
    /// Client and monitor together; only the next start can clean up.
    Family,
}

/// What is run and killed.
#[derive(Debug, Clone, Copy)]
struct Wish {
    tier: Tier,
    network: &'static str,
}

const CONTAINER: Wish = Wish {
    tier: Tier::Container,
    network: "full",
};
/// With the network that only this tier makes.
const GVISOR: Wish = Wish {
    tier: Tier::Gvisor,
    network: "none",
};
const GVISOR_WITH_NETWORK: Wish = Wish {
    tier: Tier::Gvisor,
    network: "full",
};

impl std::fmt::Display for Wish {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} with network {}", self.tier, self.network)
    }
}

/// State of the home in which a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scenario {
    /// Nothing was ever run: no disk template, no pool.
    Cold,
    /// Disks wait in the pool.
    Warm,
}

/// A home of its own with the templates of the test home.
struct TestHome {
    directory: tempfile::TempDir,
}

impl TestHome {
    fn new() -> Self {
        let shared = PathBuf::from(std::env::var_os("ATOLL_TEST_HOME").expect(
            "ATOLL_TEST_HOME is not set: run `cargo xtask test`, it builds the template that this test needs",
        ));
        let directory = tempfile::tempdir().unwrap();
        for part in ["templates", "layers", "blobs"] {
            std::os::unix::fs::symlink(shared.join(part), directory.path().join(part)).unwrap();
        }
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    fn atoll(&self) -> Command {
        let program = std::env::var_os("ATOLL_BIN")
            .map_or_else(|| env!("CARGO_BIN_EXE_atoll").into(), PathBuf::from);
        let mut command = Command::new(program);
        command
            .current_dir(self.directory.path())
            .env("ATOLL_HOME", self.directory.path())
            .env("ATOLL_ISOLATION", "container")
            .stdin(Stdio::null());
        command
    }

    fn command(&self, Wish { tier, network }: Wish) -> Command {
        let mut command = self.atoll();
        command.args(["run", "--isolation", &tier.to_string()]);
        command.args(["--net", network, "--lang", "python", "--disk", "64M"]);
        command.args(["-c", "print(6*7)"]);
        command
    }

    fn prepare(wish: Wish, scenario: Scenario) -> Self {
        let home = Self::new();
        if scenario == Scenario::Warm {
            assert_works(&home, wish, "first run");
        }
        home
    }
}

fn assert_works(home: &TestHome, wish: Wish, context: &str) {
    let output = home.command(wish).output().unwrap();
    assert!(
        output.status.success() && output.stdout == b"42\n",
        "{context}: the next run failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Points that a run of `wish` reaches in each scenario.
fn reached(wish: Wish) -> BTreeMap<String, Scenario> {
    let mut found = BTreeMap::new();
    // The later one counts: with gVisor a cold home also means a sandbox that only tries it.
    let scenarios = match wish.tier {
        Tier::Gvisor => [Scenario::Cold, Scenario::Warm],
        _ => [Scenario::Warm, Scenario::Cold],
    };
    for scenario in scenarios {
        let home = TestHome::prepare(wish, scenario);
        let log = home.path().join("points");
        let output = home
            .command(wish)
            .env("ATOLL_FAILPOINT_LOG", &log)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for point in fs::read_to_string(log).unwrap().lines() {
            found.insert(point.to_owned(), scenario);
        }
    }
    found
}

/// Points that this host cannot reach, with the reason.
fn unreachable_here() -> BTreeSet<HostObject> {
    let forwards =
        fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1");
    let unified = Path::new("/sys/fs/cgroup/unified/cgroup.procs").exists();
    // Made by a pause and no run: see `serve_checkpoint` among the tests with sandboxes.
    let mut objects = BTreeSet::from([HostObject::Checkpoint]);
    if forwards {
        objects.insert(HostObject::ForwardingSwitch);
    }
    if !unified {
        objects.insert(HostObject::Cgroup); // made by the runtime, within `container`
    }
    objects
}

/// Objects that gVisor makes alone or in a way of its own. The others are
/// made by the same lines for every tier, and tested with containers.
const GVISORS_OWN: [HostObject; 9] = [
    HostObject::TierVerdict,
    HostObject::InnerVeth,
    HostObject::RootMount,
    HostObject::Bundle,
    HostObject::Cgroup,
    HostObject::Keeper,
    HostObject::ControlSocket,
    HostObject::SandboxRecord,
    HostObject::GuestStart,
];

#[test]
fn a_kill_at_any_host_object_leaves_nothing_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let unreachable = unreachable_here();
    let (container, gvisor) = (reached(CONTAINER), reached(GVISOR));
    // Whatever only gVisor makes is in the list of its own.
    let made = |object: &HostObject, by: &BTreeMap<String, Scenario>| {
        by.contains_key(&format!("{}:before", object.name()))
    };
    for object in HostObject::ALL {
        assert!(
            unreachable.contains(object) || made(object, &container) || made(object, &gvisor),
            "no run reaches {object:?}"
        );
        assert!(
            made(object, &container)
                || unreachable.contains(object)
                || GVISORS_OWN.contains(object),
            "{object:?} is not among those of gVisor"
        );
    }
    let objects = HostObject::ALL
        .iter()
        .filter(|object| made(object, &container));
    kill_at_each(objects, CONTAINER, &container);
}

#[test]
#[ignore = "long: what gVisor has of its own; containers are killed always"]
fn a_kill_at_any_host_object_of_gvisor_leaves_nothing_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    kill_at_each(GVISORS_OWN.iter(), GVISOR, &reached(GVISOR));
}

/// What gVisor's sandbox with a network is made of from the network on. What
/// comes before is made by the same lines for every tier.
const GVISORS_WITH_NETWORK: [HostObject; 12] = [
    HostObject::NetworkNamespace,
    HostObject::Veth,
    HostObject::NftTable,
    HostObject::NetworkMember,
    HostObject::IdMapNamespace,
    HostObject::RootMount,
    HostObject::Bundle,
    HostObject::Cgroup,
    HostObject::Keeper,
    HostObject::ControlSocket,
    HostObject::SandboxRecord,
    HostObject::GuestStart,
];

#[test]
#[ignore = "long: what gVisor with a network has of its own; containers are killed always"]
fn a_kill_at_any_host_object_of_gvisor_with_a_network_leaves_nothing_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let reached = reached(GVISOR_WITH_NETWORK);
    // One that is added where the container has none is not forgotten here.
    let container = self::reached(CONTAINER);
    for object in HostObject::ALL {
        let point = format!("{}:before", object.name());
        assert!(
            !reached.contains_key(&point)
                || container.contains_key(&point)
                || GVISORS_WITH_NETWORK.contains(object)
                || GVISORS_OWN.contains(object),
            "{object:?} is not among those of gVisor"
        );
    }
    kill_at_each(GVISORS_WITH_NETWORK.iter(), GVISOR_WITH_NETWORK, &reached);
}

/// What the first sandbox with a network makes and the last one removes: who is
/// to be killed at these must be the only one.
const OF_ALL_SANDBOXES: [HostObject; 2] = [HostObject::NftTable, HostObject::ForwardingSwitch];

/// How many are killed at a time: a run waits more than it works.
const AT_A_TIME: usize = 4;

fn kill_at_each<'a>(
    objects: impl Iterator<Item = &'a HostObject>,
    wish: Wish,
    reached: &BTreeMap<String, Scenario>,
) {
    let kill = |(object, moment, scope): (&HostObject, Moment, Scope)| {
        let point = format!("{}:{}", object.name(), moment.name());
        let scenario = *reached
            .get(&point)
            .unwrap_or_else(|| panic!("no run reaches `{point}`"));
        kill_at(&point, wish, scenario, scope);
    };
    let cases = objects.flat_map(|object| {
        Moment::ALL.into_iter().flat_map(move |moment| {
            [Scope::Alone, Scope::Family].map(|scope| (object, moment, scope))
        })
    });
    let (alone, beside): (Vec<_>, Vec<_>) =
        cases.partition(|(object, ..)| OF_ALL_SANDBOXES.contains(object));
    alone.into_iter().for_each(kill);
    let waiting = Mutex::new(beside);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| std::iter::from_fn(next).for_each(kill));
        }
    });
}

/// Other sandboxes of this host may hold what a run would make, such as the firewall.
const ATTEMPTS: usize = 20;

fn kill_at(point: &str, wish: Wish, scenario: Scenario, scope: Scope) {
    let context = format!("killed at `{point}`, {wish}, {scenario:?}, {scope:?}");
    for _ in 0..ATTEMPTS {
        let home = TestHome::prepare(wish, scenario);
        let log = home.path().join("points");
        let mut command = home.command(wish);
        command
            .env("ATOLL_FAILPOINT", point)
            .env("ATOLL_FAILPOINT_LOG", &log);
        if scope == Scope::Family {
            command.env("ATOLL_FAILPOINT_SCOPE", "family");
        }
        let output = command.output().unwrap();
        if fs::read_to_string(log)
            .unwrap_or_default()
            .lines()
            .any(|line| line == point)
        {
            return check_after_kill(&home, wish, &output, scope, &context);
        }
    }
    panic!("{context}: not reached in {ATTEMPTS} runs");
}

fn check_after_kill(home: &TestHome, wish: Wish, output: &Output, scope: Scope, context: &str) {
    if scope == Scope::Family {
        assert_eq!(
            output.status.signal(),
            Some(9),
            "{context}: the client was not killed"
        );
    }
    // A run that survived its monitor must not have lied about it.
    if output.status.success() {
        assert_eq!(output.stdout, b"42\n", "{context}");
    }
    // The kill reaches client and monitor one after the other; nobody can
    // clean up after a process that has not died yet.
    leftovers::wait_for_processes_below(&home.path(), context);
    assert_works(home, wish, context);
    leftovers::assert_none(&home.path(), context);
    leftovers::wait_for_processes_below(&home.path(), context);
    let unfinished = walk(&home.path().join("disks")).into_iter().filter(|path| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        name.starts_with("unfinished-") || name.ends_with(".new")
    });
    assert_eq!(
        unfinished.collect::<Vec<_>>(),
        Vec::<PathBuf>::new(),
        "{context}"
    );
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn ten_runs_of_two_homes_do_not_notice_that_one_of_them_is_killed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let homes = [TestHome::new(), TestHome::new()];
    let program = "import sys; print('up', flush=True); sys.stdin.read(); print(6*7)";
    let start = |home: &TestHome| {
        let mut command = home.command(CONTAINER);
        command
            .arg("--")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let code = arguments
            .iter()
            .position(|argument| argument == "print(6*7)")
            .unwrap();
        arguments[code] = program.into();
        let mut command = Command::new(command.get_program());
        command
            .args(arguments)
            .current_dir(home.path())
            .env("ATOLL_HOME", home.path());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut runs: Vec<_> = (0..10).map(|number| start(&homes[number % 2])).collect();
    for run in &mut runs {
        let mut line = [0_u8; 3];
        std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut line).unwrap();
        assert_eq!(&line, b"up\n");
    }
    let mut victim = runs.remove(3);
    victim.kill().unwrap();
    victim.wait().unwrap();
    // A new start of the other home cleans up beside the nine that go on.
    assert_works(&homes[0], CONTAINER, "beside nine others");
    for mut run in runs {
        drop(run.stdin.take());
        let output = run.wait_with_output().unwrap();
        assert_eq!(
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stdout).as_ref()
            ),
            (Some(0), "42\n")
        );
    }
    for home in &homes {
        leftovers::assert_none(&home.path(), "after ten runs");
    }
}

/// Moments after the start of a run at which everything is killed. They cover
/// what no failpoint can reach: the inside of the OCI runtime.
const SWEEP: std::ops::Range<u64> = 0..30;
const SWEEP_STEP_MICROS: u64 = 2500;
/// gVisor takes longer.
const GVISOR_SWEEP_STEP_MICROS: u64 = 8000;

#[test]
#[ignore = "long: a sweep over the start; each host object is killed at always"]
fn a_kill_at_any_moment_of_a_start_leaves_nothing_behind() {
    kill_at_moments(CONTAINER, SWEEP_STEP_MICROS);
}

#[test]
#[ignore = "long: a sweep over the start of gVisor"]
fn a_kill_at_any_moment_of_a_start_of_gvisor_leaves_nothing_behind() {
    kill_at_moments(GVISOR, GVISOR_SWEEP_STEP_MICROS);
}

fn kill_at_moments(wish: Wish, step_micros: u64) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let home = TestHome::prepare(wish, Scenario::Warm);
    for number in SWEEP {
        let delay = std::time::Duration::from_micros(number * step_micros);
        let context = format!("{wish}, killed {delay:?} after its start");
        let mut client = home
            .command(wish)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Not for synchronisation: the moment is what is varied.
        std::thread::sleep(delay);
        for pid in leftovers::processes_below(&home.path()) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = client.kill();
        client.wait().unwrap();
        // What a monitor forked and had not yet locked in has no other name.
        leftovers::wait_for_monitors_below(&home.path(), &context);
        assert_works(&home, wish, &context);
        leftovers::assert_none(&home.path(), &context);
        leftovers::wait_for_processes_below(&home.path(), &context);
    }
}

/// A home whose templates may be changed, with a spec that adds one layer to `base`.
fn home_for_builds() -> (TestHome, PathBuf) {
    let home = TestHome::new();
    for part in ["templates", "layers", "blobs"] {
        let (link, shared) = (
            home.path().join(part),
            fs::read_link(home.path().join(part)).unwrap(),
        );
        fs::remove_file(&link).unwrap();
        let status = Command::new("cp")
            .args(["-a", "--link"])
            .arg(&shared)
            .arg(&link)
            .status();
        assert!(status.unwrap().success());
    }
    // Locks of its own: those of the shared home are taken by whoever runs from it.
    for lock in [".builds", ".base.lock"] {
        fs::remove_file(home.path().join("templates").join(lock)).unwrap();
    }
    let spec = home.path().join("made.toml");
    let text =
        "name = \"made\"\nfrom = { template = \"base\" }\n[[steps]]\nrun = \"echo fine > made\"\n";
    fs::write(&spec, text).unwrap();
    (home, spec)
}

/// State that a home gets with a command, its first key or its authority; all
/// other is written by builds.
const OF_IDENTITY: [(StateWrite, &[&str]); 3] = [
    (StateWrite::NodeId, &["key", "create"]),
    (StateWrite::HomeSecret, &["key", "create"]),
    (StateWrite::Authority, &["ca", "--domain", "my.zone"]),
];

#[test]
fn a_kill_while_a_home_gets_its_identity_is_mended_by_the_next_command() {
    for (write, arguments) in OF_IDENTITY {
        for moment in Moment::ALL {
            let point = format!("{}:{}", write.name(), moment.name());
            let home = TestHome::new();
            let create = || {
                let mut command = home.atoll();
                command.args(arguments);
                command
            };
            let killed = create().env("ATOLL_FAILPOINT", &point).output().unwrap();
            let said = String::from_utf8_lossy(&killed.stderr);
            assert_eq!(
                killed.status.signal(),
                Some(9),
                "`{point}` was not reached: {said}"
            );
            assert_eq!(
                killed.stdout, b"",
                "{point}: nothing is told that is not stored"
            );
            for _ in 0..2 {
                let mended = create().output().unwrap();
                assert!(
                    mended.status.success(),
                    "{point}: {}",
                    String::from_utf8_lossy(&mended.stderr)
                );
            }
            for directory in [home.path(), home.path().join("tls")] {
                assert_eq!(
                    unfinished_below(&directory),
                    Vec::<PathBuf>::new(),
                    "{point}"
                );
            }
        }
    }
}

#[test]
fn a_kill_at_any_state_write_of_a_build_is_mended_by_the_next_one() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let of_builds = StateWrite::ALL
        .iter()
        .filter(|write| OF_IDENTITY.iter().all(|(other, _)| other != *write))
        // Written by servers: `serve_crash.rs`.
        .filter(|write| **write != StateWrite::SnapshotRecord);
    for write in of_builds {
        for moment in Moment::ALL {
            let point = format!("{}:{}", write.name(), moment.name());
            let (home, spec) = home_for_builds();
            let build = || {
                let mut command = home.atoll();
                command.args(["template", "build"]).arg(&spec);
                command
            };
            let killed = build().env("ATOLL_FAILPOINT", &point).output().unwrap();
            let said = String::from_utf8_lossy(&killed.stderr);
            assert_eq!(
                killed.status.signal(),
                Some(9),
                "`{point}` was not reached: {said}"
            );
            leftovers::wait_for_processes_below(&home.path(), &point);
            let mended = build().output().unwrap();
            assert!(
                mended.status.success(),
                "{point}: {}",
                String::from_utf8_lossy(&mended.stderr)
            );
            let mut run = home.atoll();
            let run = run.args([
                "run",
                "--template",
                "made",
                "--lang",
                "bash",
                "-c",
                "cat made",
            ]);
            assert_eq!(run.output().unwrap().stdout, b"fine\n", "{point}");
            let unfinished =
                ["templates", "layers", "blobs", "build-cache"].map(|part| home.path().join(part));
            let unfinished = unfinished.iter().flat_map(|part| unfinished_below(part));
            assert_eq!(
                unfinished.collect::<Vec<_>>(),
                Vec::<PathBuf>::new(),
                "{point}"
            );
            leftovers::assert_none(&home.path(), &point);
        }
    }
}

/// What has a name for things that are not finished, not looking into finished layers.
fn unfinished_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(".new-") || name.starts_with(".incoming-") {
            found.push(entry.path());
        } else if name == "incoming" {
            found.extend(walk(&entry.path()));
        }
    }
    found
}
