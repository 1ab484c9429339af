//! The attack suite: everything holds, and nothing would if the walls were not there.
//! `ATOLL_TEST_TIER` chooses the tier that is attacked.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use atoll_engine::{
    CreateError, EngineConfig, MonitoredRuntime, Runtime, Sandbox, SandboxSpec, Tier,
};
use atoll_selftest::{Case, CaseReport, Glob, Ground, Verdict};
use harness::sandboxes::Sandboxes;
use harness::{TestHome, binary, eventually, second_home, tier};
use rustix::process::Signal;
use serde_json::Value;

/// Cases that must be there at least.
const CASES: usize = 80;

/// Name and outcome of every case that `atoll selftest --json` tells of.
fn outcomes(finished: &harness::Finished) -> BTreeMap<String, String> {
    let text = finished.stdout.trim();
    let reports: Vec<Value> = serde_json::from_str(text).unwrap_or_else(|error| {
        panic!("{error}: {finished:#?}");
    });
    let field = |report: &Value, name: &str| report[name].as_str().unwrap().to_owned();
    reports
        .iter()
        .map(|report| (field(report, "name"), field(report, "outcome")))
        .collect()
}

#[test]
fn every_wall_of_the_tier_holds() {
    let home = second_home();
    let tier = tier().to_string();
    let groups: BTreeSet<String> = atoll_selftest::cases()
        .unwrap()
        .into_iter()
        .map(|case| case.group)
        .collect();
    // One after the other: a command of these tests has a bound, and all of them take minutes.
    let mut outcomes = BTreeMap::new();
    for group in groups {
        let finished = home.run(["selftest", "--only", &group, "--tier", &tier, "--json"]);
        let found = self::outcomes(&finished);
        let bad: Vec<_> = found
            .iter()
            .filter(|(_, outcome)| !["held", "not_applicable"].contains(&outcome.as_str()))
            .collect();
        assert!(bad.is_empty(), "{bad:#?}\n{}", finished.stderr);
        assert_eq!(finished.code, 0, "{group}");
        outcomes.extend(found);
    }
    assert!(outcomes.len() >= CASES, "{}", outcomes.len());
    // A host that lacks so much would show nothing.
    let held = outcomes.values().filter(|outcome| *outcome == "held");
    assert!(held.count() >= CASES, "{outcomes:#?}");
    assert_no_canaries(&home);
}

/// Everything of the keeper's, also the shared memory, goes before its directory does.
fn assert_no_canaries(home: &TestHome) {
    assert!(!home.path().join("selftest").exists());
}

#[test]
fn json_has_what_was_tried_got_and_held() {
    let home = second_home();
    let tier = tier().to_string();
    let only = ["--only", "host-files.read-canary", "--tier", &tier];
    let finished = home.run(["selftest", "--json"].iter().chain(&only));
    let reports: Value = serde_json::from_str(finished.stdout.trim()).unwrap();
    let report = &reports[0];
    assert_eq!(reports.as_array().unwrap().len(), 1);
    for (field, expected) in [
        ("name", "host-files.read-canary"),
        ("group", "host-files"),
        ("tier", &tier),
        ("outcome", "held"),
        ("tried", "reads a file of the host by its path"),
        ("control", "the same as root of the host"),
    ] {
        assert_eq!(report[field], expected, "{field}");
    }
    for field in ["got", "wall", "control_got"] {
        assert!(!report[field].as_str().unwrap().is_empty(), "{field}");
    }
    assert!(report["duration_ms"].is_u64());
}

#[test]
fn the_table_names_case_tier_attempt_and_wall() {
    let home = second_home();
    let tier = tier().to_string();
    let finished = home.run(["selftest", "--only", "host-files.climb", "--tier", &tier]);
    assert_eq!(finished.code, 0, "{finished:#?}");
    for expected in [
        "held",
        "host-files.climb",
        &tier,
        "ENOENT",
        "1 cases: 1 held",
    ] {
        assert!(
            finished.stdout.contains(expected),
            "{expected}: {finished:#?}"
        );
    }
}

#[test]
fn the_list_runs_nothing_and_wrong_patterns_are_told_what_exists() {
    let home = TestHome::empty();
    let listed = home.run(["selftest", "--list", "--json"]);
    let listed: Value = serde_json::from_str(listed.stdout.trim()).unwrap();
    assert!(listed.as_array().unwrap().len() >= CASES);
    assert!(!home.path().join("sandboxes").exists(), "nothing was made");

    let finished = home.run(["selftest", "--only", "no-such-thing"]);
    assert_eq!(finished.code, 125);
    assert!(
        finished
            .stderr
            .contains("no case is called `no-such-thing`")
            && finished.stderr.contains("hint: groups are host-files, ")
            && finished.stderr.contains("--list"),
        "{finished:#?}"
    );
}

#[test]
fn a_survey_says_what_an_attacker_finds() {
    let home = second_home();
    let name = tier().to_string();
    let text = home
        .run(["selftest", "--survey", "--tier", &name])
        .succeeded();
    let (seccomp, rights) = match tier() {
        // gVisor's kernel takes the place of a filter, and gives no packet sockets.
        Tier::Gvisor => ("seccomp:\n  none", "13 of 41"),
        Tier::Container | Tier::Microvm => ("seccomp:\n  filter, 2 filters", "14 of 41"),
    };
    for expected in [
        &format!("tier {name}, as root"),
        &format!("tier {name}, as user"),
        seccomp,
        rights,
        "cloud metadata:\n  no answer",
        "writable cgroup files:\n  none",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_sandbox_without_seccomp_is_noticed() {
    let home = second_home();
    let sabotaged = home
        .atoll([
            "selftest",
            "--tier",
            "container",
            "--only",
            "keyring",
            "--json",
        ])
        .env("ATOLL_FAILPOINT", "seccomp:missing")
        .finish();
    assert_eq!(sabotaged.code, 1, "{sabotaged:#?}");
    assert_eq!(outcomes(&sabotaged)["keyring.call-adding"], "breached");
    assert!(sabotaged.stderr.contains("breached keyring.call-adding"));
}

#[test]
fn a_sandbox_without_masks_is_noticed() {
    let home = second_home();
    let sabotaged = home
        .atoll([
            "selftest",
            "--tier",
            "container",
            "--only",
            "proc.secrets-*",
            "--json",
        ])
        .env("ATOLL_FAILPOINT", "masks:missing")
        .finish();
    assert_eq!(sabotaged.code, 1, "{sabotaged:#?}");
    let outcomes = outcomes(&sabotaged);
    assert_eq!(outcomes["proc.secrets-block-devices"], "breached");
    // Only what was taken away is missed.
    assert_eq!(outcomes["proc.secrets-keys"], "held");
}

/// A runtime that makes other sandboxes than it was asked for.
struct Careless {
    inner: MonitoredRuntime,
    mistake: fn(&mut SandboxSpec, &PathBuf),
    layer: PathBuf,
}

impl Runtime for Careless {
    fn tier(&self) -> Tier {
        self.inner.tier()
    }

    fn create(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        let mut spec = spec.clone();
        (self.mistake)(&mut spec, &self.layer);
        self.inner.create(&spec)
    }
}

/// What becomes of the cases `pattern` on a runtime that makes `mistake`.
fn with_mistake(
    pattern: &str,
    prepare: impl FnOnce(&TestHome, &PathBuf),
    mistake: fn(&mut SandboxSpec, &PathBuf),
) -> Vec<CaseReport> {
    let sandboxes = Sandboxes::new();
    let runtime = MonitoredRuntime::new(sandboxes.config.clone(), tier());
    with_mistake_of(&sandboxes, runtime, pattern, prepare, mistake)
}

/// The same with a runtime of the caller's.
fn with_mistake_of(
    sandboxes: &Sandboxes,
    inner: MonitoredRuntime,
    pattern: &str,
    prepare: impl FnOnce(&TestHome, &PathBuf),
    mistake: fn(&mut SandboxSpec, &PathBuf),
) -> Vec<CaseReport> {
    let layer = sandboxes.home.work().join("planted");
    fs::create_dir_all(&layer).unwrap();
    prepare(&sandboxes.home, &layer);
    let spec = sandboxes.spec(
        atoll_engine::Attachment::Client,
        harness::sandboxes::LIFETIME,
        atoll_engine::Limits::default(),
    );
    let ground = Ground {
        home: sandboxes.home.path().to_owned(),
        program: binary(),
        layers: spec.layers,
        user: "user".to_owned(),
        range: "10.87.0.0/16".to_owned(),
        runtimes: vec![Arc::new(Careless {
            inner,
            mistake,
            layer,
        })],
    };
    let glob = Glob::new(pattern);
    let cases: Vec<Case> = atoll_selftest::cases()
        .unwrap()
        .into_iter()
        .filter(|case| glob.matches(&case.name))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime
        .block_on(atoll_selftest::run(&ground, &cases, &mut |_| ()))
        .unwrap()
}

#[test]
fn limits_that_are_not_what_was_asked_for_are_noticed() {
    let reports = with_mistake(
        "floods.*",
        |_, _| (),
        |spec, _| {
            // As if no limit of processes, disk or files had been set.
            spec.limits.pids = 4096;
            spec.limits.disk_mib = 1024;
            spec.limits.open_files = 4096;
        },
    );
    let outcome = |name: &str| {
        let found = reports.iter().find(|report| report.name == name);
        found.unwrap().outcome
    };
    for name in [
        "floods.processes",
        "floods.threads",
        "floods.disk",
        "floods.open-files",
    ] {
        assert_eq!(outcome(name), Verdict::Breached, "{name}");
    }
    for name in ["floods.shared-memory", "floods.memory-an-allocation"] {
        assert_eq!(outcome(name), Verdict::Held, "{name}");
    }
}

#[test]
fn a_name_of_the_host_that_leaks_is_noticed() {
    let reports = with_mistake(
        "proc.host-name",
        |_, _| (),
        |spec, _| {
            spec.hostname = fs::read_to_string("/proc/sys/kernel/hostname")
                .unwrap()
                .trim()
                .to_owned();
        },
    );
    assert_eq!(reports[0].outcome, Verdict::Breached, "{reports:#?}");
}

#[test]
fn a_file_of_another_sandbox_that_leaks_is_noticed() {
    let reports = with_mistake(
        "neighbours.file",
        |_, layer| {
            fs::create_dir_all(layer.join("tmp")).unwrap();
            fs::write(layer.join("tmp/neighbour-secret"), "left by somebody else").unwrap();
        },
        |spec, layer| spec.layers.insert(0, layer.clone()),
    );
    assert_eq!(reports[0].outcome, Verdict::Breached, "{reports:#?}");
}

/// Every call of gVisor goes through a program that gives the sandbox one right
/// more than Atoll's bundle does.
#[test]
fn a_right_too_many_under_gvisor_is_noticed() {
    let sandboxes = Sandboxes::new();
    let wrapper = sandboxes.home.file(
        "generous-runsc",
        "#!/bin/sh\nfor word; do\n  if [ \"$before\" = --bundle ]; then\n    \
         sed -i 's/\"CAP_SYS_CHROOT\"/\"CAP_SYS_CHROOT\",\"CAP_NET_ADMIN\"/g' \"$word/config.json\"\n  \
         fi\n  before=$word\ndone\nexec runsc \"$@\"\n",
    );
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let config = EngineConfig {
        runsc: wrapper,
        ..sandboxes.config.clone()
    };
    let reports = with_mistake_of(
        &sandboxes,
        MonitoredRuntime::new(config, Tier::Gvisor),
        "identity.capabilities-*",
        |_, _| (),
        |_, _| (),
    );
    let breached: Vec<&str> = reports
        .iter()
        .filter(|report| report.outcome == Verdict::Breached)
        .map(|report| report.name.as_str())
        .collect();
    assert_eq!(
        breached,
        ["identity.capabilities-net-admin"],
        "{reports:#?}"
    );
}

#[test]
fn a_variable_that_leaks_into_the_agent_is_noticed_where_it_can_be_read() {
    let reports = with_mistake(
        "environment.agent",
        |_, _| (),
        |spec, _| {
            spec.env
                .insert("LEAKED".to_owned(), "by the runtime".to_owned());
        },
    );
    // In a container nobody can read the variables of PID 1.
    let expected = match tier() {
        Tier::Gvisor => Verdict::Breached,
        Tier::Container | Tier::Microvm => Verdict::Held,
    };
    assert_eq!(reports[0].outcome, expected, "{reports:#?}");
}

#[test]
fn a_runtime_that_makes_no_sandbox_proves_nothing() {
    let reports = with_mistake(
        "host-files.read-canary",
        |_, _| (),
        |spec, _| spec.limits.memory_mib = 1,
    );
    assert_eq!(reports[0].outcome, Verdict::Inconclusive, "{reports:#?}");
}

/// A selftest of `group` that is in the middle of it.
fn under_way(home: &TestHome, group: &str) -> harness::Running {
    let tier = tier().to_string();
    let arguments = ["selftest", "--only", group, "--tier", &tier, "--json"];
    let running = home.atoll(arguments).start();
    home.lease();
    eventually("canaries", || {
        home.path().join("selftest").exists().then_some(())
    });
    running
}

/// The process with the canaries of a selftest.
fn keeper_of(home: &TestHome) -> rustix::process::Pid {
    let below = home.path().join("selftest").display().to_string();
    eventually("the keeper", || {
        fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let is_keeper = line.contains("\0keeper\0") && line.contains(&below);
            is_keeper.then(|| rustix::process::Pid::from_raw(pid))?
        })
    })
}

#[test]
fn an_interrupted_selftest_leaves_nothing() {
    let home = second_home();
    for group in ["floods", "network"] {
        let running = under_way(&home, group);
        running.signal_group(Signal::INT);
        assert_eq!(running.finish().code, 130);
        eventually("the end of the canaries", || {
            (!home.path().join("selftest").exists()).then_some(())
        });
        home.assert_nothing_left("after Ctrl-C");
    }
}

#[test]
fn a_killed_selftest_leaves_nothing() {
    let home = second_home();
    for group in ["floods", "network"] {
        let running = under_way(&home, group);
        running.signal(Signal::KILL);
        running.finish();
        // Its keeper and its monitors notice.
        eventually("the end of the canaries", || {
            (!home.path().join("selftest").exists()).then_some(())
        });
        home.assert_nothing_left("after SIGKILL");
    }

    // If the keeper is killed as well, the next command of the home removes its canaries.
    let running = under_way(&home, "floods");
    let keeper = keeper_of(&home);
    running.signal(Signal::STOP);
    rustix::process::kill_process(keeper, Signal::KILL).unwrap();
    running.signal(Signal::KILL);
    running.finish();
    assert!(home.path().join("selftest").exists(), "nobody cleaned up");
    home.run(["template", "list"]);
    assert_no_canaries(&home);
    home.assert_nothing_left("after SIGKILL of all of it");
}
