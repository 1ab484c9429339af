//! The attack suite: everything holds, and nothing would if the walls were not there.
//! `ATOLL_TEST_TIER` chooses the tier that is attacked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_engine::{
    CreateError, EngineConfig, MonitoredRuntime, Runtime, Sandbox, SandboxSpec, Tier,
};
use atoll_selftest::{Case, CaseReport, Glob, Ground, Verdict};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness;
use crate::harness::sandboxes::Sandboxes;
use crate::harness::{TestHome, binary, eventually, home_for_builds, second_home, tier};

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
    with_room(pattern, prepare, mistake, |source| Ok(source.to_owned()))
}

/// The same, with another tree for the control room than that of the template's source.
fn with_room(
    pattern: &str,
    prepare: impl FnOnce(&TestHome, &PathBuf),
    mistake: fn(&mut SandboxSpec, &PathBuf),
    room: impl FnOnce(&Path) -> Result<PathBuf, String>,
) -> Vec<CaseReport> {
    let sandboxes = Sandboxes::new();
    let runtime = MonitoredRuntime::new(sandboxes.config.clone(), tier());
    with_mistake_of(&sandboxes, runtime, pattern, prepare, mistake, room)
}

/// The same with a runtime of the caller's.
fn with_mistake_of(
    sandboxes: &Sandboxes,
    inner: MonitoredRuntime,
    pattern: &str,
    prepare: impl FnOnce(&TestHome, &PathBuf),
    mistake: fn(&mut SandboxSpec, &PathBuf),
    room: impl FnOnce(&Path) -> Result<PathBuf, String>,
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
        room: room(spec.layers.last().unwrap()),
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
        |source| Ok(source.to_owned()),
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

/// A `python3` that reaches for the host before it does what it is asked for.
const HOSTILE: &str = r#"
name = "hostile"
from = { template = "base" }
user = "user"

[[steps]]
user = "root"
run = """
real=$(readlink -f /usr/bin/python3)
rm /usr/bin/python3
cat > /usr/bin/python3 <<END
#!/bin/sh
echo ran > /tmp/ran
echo owned > /proc/1/root@MARKER@
exec $real "\\$@"
END
chmod 755 /usr/bin/python3
"""
"#;

#[test]
fn a_hostile_interpreter_in_a_template_never_runs_on_the_host() {
    let home = home_for_builds();
    let marker = home.work().join("marker");
    let spec = HOSTILE.replace("@MARKER@", marker.to_str().unwrap());
    home.file("hostile.toml", spec);
    home.run(["template", "build", "hostile.toml"]).succeeded();
    let inside = home.run([
        "run",
        "--template",
        "hostile",
        "--lang",
        "bash",
        "-c",
        "python3 -c 1; cat /tmp/ran",
    ]);
    assert_eq!(inside.stdout, "ran\n", "{inside:#?}");
    // One with a control in a room of the host, and one of the network, whose world is one too.
    for case in ["host-files.read-canary", "network.redirect"] {
        let finished = home.run([
            "selftest",
            "--tier",
            "container",
            "--template",
            "hostile",
            "--only",
            case,
            "--json",
        ]);
        assert_eq!(outcomes(&finished)[case], "held", "{finished:#?}");
        assert!(
            !marker.exists(),
            "{case}: a program of the template was root of the host"
        );
    }
}

#[test]
fn without_a_room_that_the_host_made_nothing_is_proven() {
    let play = |room: fn(&Path) -> Result<PathBuf, String>| {
        let mut reports = with_room("host-files.read-canary", |_, _| (), |_, _| (), room);
        let report = reports.remove(0);
        (report.outcome, report.reason.unwrap_or_default())
    };
    let (outcome, reason) = play(|_| Err("there is no `base`".to_owned()));
    assert_eq!(outcome, Verdict::Inconclusive);
    assert!(reason.contains("there is no `base`"), "{reason}");
    // A tree without an interpreter; it must be a directory that is there.
    let (outcome, reason) = play(|source| Ok(source.join("media")));
    assert_eq!(outcome, Verdict::Inconclusive);
    assert!(reason.contains("the room cannot run `python3`"), "{reason}");
}

#[test]
fn a_neighbour_that_names_files_of_the_host_is_not_believed() {
    let reports = with_mistake(
        "neighbours.file",
        |_, layer| {
            let belongings = r#"{"scratch": "/etc/shadow"}"#;
            let report = serde_json::json!({"success": true, "got": belongings});
            let program = layer.join("usr/bin/python3");
            fs::create_dir_all(program.parent().unwrap()).unwrap();
            fs::write(
                &program,
                format!("#!/bin/sh\ncat > /dev/null\necho '{report}'\n"),
            )
            .unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        },
        |spec, layer| spec.layers.insert(0, layer.clone()),
    );
    let reason = reports[0].reason.clone().unwrap_or_default();
    assert_eq!(reports[0].outcome, Verdict::Inconclusive, "{reports:#?}");
    assert!(reason.contains("unknown field `scratch`"), "{reason}");
}

/// An order for the control room, carried out by hand.
struct Room {
    directory: tempfile::TempDir,
    order: Value,
}

impl Room {
    /// One that runs `program` in the tree of `base`, with a canaries' directory on the disk.
    fn new(home: &TestHome, program: &str) -> Self {
        let inspected = home.run(["template", "inspect", "base"]).json();
        let source = inspected["layers"].as_array().unwrap().last().unwrap();
        let source = source.as_str().unwrap().replace(':', "-");
        let directory = tempfile::Builder::new()
            .prefix("atoll-test-")
            .tempdir_in("/var/tmp")
            .unwrap();
        for name in ["room", "open"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let order = serde_json::json!({
            "layers": [home.path().join("layers").join(source)],
            "room": directory.path().join("room"),
            "canaries": directory.path().join("open"),
            "namespaces": [],
            "pids": "own",
            "pivoted": false,
            "leak": false,
            "bare": false,
            "directory": "/",
            "program": program,
        });
        Self { directory, order }
    }

    fn enter(&self) -> std::process::Child {
        let mut child = std::process::Command::new(binary())
            .args(["selftest-part", "room"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let line = format!("{}\n", self.order);
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), line.as_bytes()).unwrap();
        child
    }
}

/// Whether a process with `word` on its command line lives.
fn lives(word: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|part| part == word.as_bytes())
    })
}

#[test]
fn no_process_outlives_the_control_room() {
    let home = second_home();
    // Out of every group and session, without a parent, deaf to all but SIGKILL.
    let program = "import os, signal, time
if os.fork() == 0:
    os.setsid()
    for number in (1, 2, 3, 15):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.execvp('sleep', ['sleep', '100000', '@WORD@'])
    os._exit(0)
while not os.path.exists('@END@'):
    time.sleep(0.01)
";
    for (pids, ending) in [
        ("own", "the program's end"),
        ("own", "the end of the input"),
        ("own", "a killed warden"),
        ("host", "the program's end"),
        ("host", "the end of the input"),
    ] {
        let context = format!("{pids}, {ending}");
        let mut room = Room::new(&home, "");
        let word = room.directory.path().file_name().unwrap();
        // A number, for `sleep` adds them up.
        let word = format!(
            "0.{}",
            word.to_str()
                .unwrap()
                .bytes()
                .map(|byte| byte.to_string())
                .collect::<String>()
        );
        let end = room.directory.path().join("open/end");
        let program = program
            .replace("@WORD@", &word)
            .replace("@END@", end.to_str().unwrap());
        room.order["program"] = program.into();
        room.order["pids"] = pids.into();
        let mut child = room.enter();
        eventually(&format!("{context}: the detached process"), || {
            lives(&word).then_some(())
        });
        match ending {
            "the program's end" => fs::write(end, "").unwrap(),
            "a killed warden" => child.kill().unwrap(),
            _ => drop(child.stdin.take()),
        }
        let input = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(input);
        match ending {
            // The kernel does it, and tells nobody when it has.
            "a killed warden" => eventually(&format!("{context}: its end"), || {
                (!lives(&word)).then_some(())
            }),
            _ => assert!(!lives(&word), "{context}: {output:?}"),
        }
    }
}

#[test]
fn links_in_the_tree_of_the_control_room_lead_nowhere() {
    let home = second_home();
    let room = Room::new(&home, "print('here')");
    let mut child = room.enter();
    let input = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.stdout, b"here\n", "{output:?}");

    // The same with a link on the way to the canaries.
    let mut room = Room::new(&home, "print('here')");
    let (layer, victim) = (home.work().join("layer"), home.work().join("victim"));
    let place = room.directory.path().strip_prefix("/").unwrap();
    let link = layer.join(place);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    fs::create_dir(&victim).unwrap();
    symlink(&victim, link).unwrap();
    let layers = room.order["layers"].as_array_mut().unwrap();
    layers.insert(0, layer.to_str().unwrap().into());
    let mut child = room.enter();
    let input = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(said.contains("no place for"), "{said}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{said}");
}
