//! `atoll doctor`, `atoll gc`, completions and help: what keeps a host and its operator in shape.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{self, Finished, TestHome, home_for_builds, second_home};

fn checks(finished: &Finished) -> Vec<(String, String)> {
    let checks = finished.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = checks.as_array().unwrap().iter();
    checks
        .map(|check| (text(&check["name"]), text(&check["verdict"])))
        .collect()
}

#[test]
fn doctor_finds_this_host_fit_and_leaves_nothing() {
    let home = second_home();
    let finished = home.run(["doctor", "--json"]);
    assert_eq!(
        (finished.code, finished.stderr.as_str()),
        (0, ""),
        "{finished:#?}"
    );
    let found = checks(&finished);
    for name in [
        "root",
        "kernel",
        "user namespaces",
        "loop devices",
        "cgroups",
        "mkfs.ext4",
        "nft",
        "home",
    ] {
        let expected = (name.to_owned(), "ok".to_owned());
        assert!(found.contains(&expected), "{name}: {found:?}");
    }
    let shown = home.run(["doctor"]).succeeded();
    assert!(shown.contains("isolation: container"), "{shown}");
    for (name, _) in &found {
        assert!(shown.contains(name.as_str()), "{name}");
    }
    home.assert_nothing_left("after the doctor");
}

#[test]
fn doctor_names_what_is_missing_and_how_to_add_it() {
    let home = second_home();
    let doctor = |prefix: &[&str], script: &str| {
        home.atoll(["-c", script, harness::binary().to_str().unwrap()])
            .instead("/bin/sh".as_ref())
            .through(prefix)
            .finish()
    };
    let private = ["unshare", "--mount", "--propagation", "private"];
    let hidden = |what: &str, then: &str| format!("{what} && exec \"$0\" {then}");
    let no_cgroups = "mount -t tmpfs none /sys/fs/cgroup";
    let no_pids = "if [ -d /sys/fs/cgroup/pids ]; then mount -t tmpfs none /sys/fs/cgroup/pids; else
mount -t tmpfs none /mnt && echo cpu memory > /mnt/controllers && mount --bind /mnt/controllers /sys/fs/cgroup/cgroup.controllers; fi";
    let add_pids = match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => "grep -e pids /proc/mounts",
        false => "mount -t cgroup -o pids none /sys/fs/cgroup/pids",
    };
    let no_loop = "mount -t tmpfs none /dev";
    for (hide, name, command) in [
        (no_cgroups, "cgroups", "mount -t cgroup2 none "),
        (no_pids, "cgroups", add_pids),
        (no_loop, "loop devices", "modprobe loop"),
    ] {
        let finished = doctor(&private, &hidden(hide, "doctor --json"));
        assert_eq!(finished.code, 1, "{finished:#?}");
        let report = finished.json();
        let check = report
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == name)
            .unwrap();
        assert_eq!(check["verdict"], "failed", "{check}");
        assert!(is_command(&check["fix"], command), "{check}");
        let shown = doctor(&private, &hidden(hide, "doctor"));
        assert_eq!(shown.code, 1);
        assert!(
            shown.stdout.contains("MISSING") && shown.stdout.contains("hint: "),
            "{shown:#?}"
        );
        assert!(
            shown.stdout.contains("isolation: none works here yet"),
            "{shown:#?}"
        );
    }
    doctor_names_programs_that_are_not_installed(&home);
    let open = tempfile::Builder::new()
        .prefix("atoll-open-")
        .tempdir_in("/tmp")
        .unwrap();
    let program = open.path().join("atoll");
    fs::copy(harness::binary(), &program).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(open.path(), mode).unwrap();
    let finished = home
        .atoll(["doctor", "--json"])
        .instead(&program)
        .through([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ])
        .without_env("ATOLL_HOME")
        .env("HOME", open.path())
        .finish();
    assert_eq!(finished.code, 1);
    assert!(
        checks(&finished).contains(&("root".to_owned(), "failed".to_owned())),
        "{finished:#?}"
    );
}

/// Whether a hint shows a command, between backticks, that begins or goes on with `wanted`.
fn is_command(fix: &Value, wanted: &str) -> bool {
    let fix = fix.as_str().unwrap_or_default();
    fix.split('`')
        .skip(1)
        .step_by(2)
        .any(|command| command.contains(wanted))
}

fn doctor_names_programs_that_are_not_installed(home: &TestHome) {
    let check = |finished: &Finished, name: &str| {
        let report = finished.json();
        let checks = report.as_array().unwrap().iter();
        let mut found = checks.filter(|check| check["name"] == name);
        found.next().unwrap_or(&Value::Null).clone()
    };
    let nowhere = tempfile::tempdir().unwrap();
    let doctor = || home.atoll(["doctor", "--json"]);
    let bare = doctor().env("PATH", nowhere.path()).finish();
    assert_eq!(bare.code, 1, "{bare:#?}");
    for (name, verdict, package) in [
        ("mkfs.ext4", "failed", "e2fsprogs"),
        ("nft", "warning", "nftables"),
        ("mmdebstrap", "warning", "mmdebstrap"),
    ] {
        let found = check(&bare, name);
        assert_eq!(found["verdict"], verdict, "{found}");
        let command = format!("apt-get install {package}");
        assert!(is_command(&found["fix"], &command), "{found}");
    }
    // Sandboxes can be made without gVisor, so the rest is tried, and well.
    let without = doctor().env("ATOLL_RUNSC", "runsc-of-nowhere").finish();
    assert_eq!(without.code, 0, "{without:#?}");
    let found = check(&without, "gvisor tier");
    assert_eq!(found["verdict"], "warning", "{found}");
    assert_eq!(found["detail"], "`runsc` is not installed", "{found}");
    assert!(
        // Without the name of the suite Debian 12 gives its own, which is too old.
        is_command(
            &found["fix"],
            "apt-get update && apt-get install -t bookworm-backports runsc"
        ),
        "{found}"
    );
}

/// What `gc` says, with the space it cannot know exactly left out. What it lists is
/// what it counts.
fn gc(home: &TestHome, options: &[&str]) -> Value {
    let mut swept = home.atoll(["gc", "--json"]).and(options).finish().json();
    let bytes = swept["disk_bytes"].take().as_u64().unwrap();
    swept["disk_bytes"] = json!(bytes > 0);
    let object = swept.as_object_mut().unwrap();
    let items = object.remove("items").unwrap();
    let items = items.as_array().unwrap();
    let sum: u64 = items.iter().map(|one| one["bytes"].as_u64().unwrap()).sum();
    assert_eq!(object.remove("bytes").unwrap(), sum);
    for (kind, count) in [
        ("sandbox", "sandboxes"),
        ("interface", "interfaces"),
        ("record", "records"),
        ("layer", "layers"),
        ("file", "files"),
    ] {
        let listed = items.iter().filter(|one| one["kind"] == kind).count();
        assert_eq!(object[count], listed, "{kind}");
    }
    swept
}

#[test]
fn a_dry_run_names_exactly_what_a_real_one_removes() {
    let home = home_for_builds();
    home.run(["gc"]).succeeded();
    home.python("print(1)").succeeded();
    let orphan = home
        .path()
        .join("layers")
        .join(format!("sha256-{}", "0".repeat(64)));
    let guest = home.path().join("guest/00000000");
    for directory in [&orphan, &guest] {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("file"), vec![1; 100_000]).unwrap();
    }
    let record = json!({
        "digest": format!("sha256:{}", "0".repeat(64)), "bytes": 1, "files": 1,
        "blob": format!("sha256:{}", "1".repeat(64)), "blob_bytes": 5,
    });
    fs::write(orphan.with_extension("json"), record.to_string()).unwrap();
    let items = |options: &[&str]| {
        let options = [options, &["--older-than", "1ms"]].concat();
        let swept = home.atoll(["gc", "--json"]).and(options).finish().json();
        let items = swept["items"].as_array().unwrap().iter();
        // What others interrupted at this moment may be among it.
        let own = items.filter(|one| one["kind"] != "sandbox" && one["kind"] != "interface");
        own.cloned().collect::<Vec<_>>()
    };
    let shown = items(&["--dry-run"]);
    let kinds: Vec<&str> = shown
        .iter()
        .map(|one| one["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["record", "disk", "file", "layer"], "{shown:#?}");
    assert!(
        shown.iter().all(|one| one["bytes"].as_u64() > Some(0)),
        "{shown:#?}"
    );
    assert!(
        orphan.exists() && guest.exists(),
        "a dry run removes nothing"
    );
    assert_eq!(items(&["--dry-run"]), shown);
    assert_eq!(items(&[]), shown);
    assert!(!orphan.exists() && !guest.exists());
    assert_eq!(items(&["--dry-run"]), Vec::<Value>::new());
}

#[test]
fn gc_removes_what_is_old_and_keeps_what_is_not() {
    let home = home_for_builds();
    // The shared home may hold layers of a template that was built anew.
    home.run(["gc"]).succeeded();
    home.python("print(1)").succeeded();
    home.python("print(2)").succeeded();
    assert_eq!(home.endings().len(), 2);

    // What others interrupted at this moment may be counted, so those numbers stay out.
    let without_others = |mut swept: Value| {
        swept["sandboxes"].take();
        swept["interfaces"].take();
        swept
    };
    let preview = without_others(gc(&home, &["--dry-run", "--older-than", "1ms"]));
    assert_eq!(
        preview,
        json!({"sandboxes": null, "interfaces": null, "layers": 0, "files": 0, "records": 2, "disk_bytes": true})
    );
    assert_eq!(home.endings().len(), 2, "a preview removes nothing");

    let young = without_others(gc(&home, &[]));
    assert_eq!(
        young,
        json!({"sandboxes": null, "interfaces": null, "layers": 0, "files": 0, "records": 0, "disk_bytes": true})
    );
    assert_eq!(home.endings().len(), 2, "records of today are kept");

    let swept = without_others(gc(&home, &["--older-than", "1ms"]));
    assert_eq!(
        swept,
        json!({"sandboxes": null, "interfaces": null, "layers": 0, "files": 0, "records": 2, "disk_bytes": false})
    );
    assert_eq!(home.endings().len(), 0);
    let disks = fs::read_dir(home.path().join("disks")).unwrap().count();
    assert_eq!(disks, 0, "the pool is gone");
    assert_eq!(
        home.python("print(6*7)"),
        Finished::printed("42\n"),
        "and comes back"
    );
    let shown = home.run(["gc"]).succeeded();
    assert_eq!(shown.lines().count(), 7, "{shown}");
}

#[test]
fn gc_leaves_running_sandboxes_alone() {
    let home = home_for_builds();
    let mut running = home
        .atoll([
            "run",
            "-l",
            "bash",
            "-c",
            "echo ready; cat; echo > file && echo fine",
        ])
        .start();
    running.wait_for("ready");
    home.run(["gc", "--older-than", "1ms"]).succeeded();
    assert_eq!(running.finish(), Finished::printed("ready\nfine\n"));
}

#[test]
fn completions_are_scripts_that_their_shells_accept() {
    let home = TestHome::empty();
    for (shell, check) in [
        ("bash", Some(["bash", "-n"])),
        ("zsh", None),
        ("fish", None),
    ] {
        let script = home.run(["completions", shell]).succeeded();
        for word in [
            "run",
            "shell",
            "template",
            "doctor",
            "gc",
            "--memory",
            "--timeout",
        ] {
            let word = if shell == "fish" {
                word.trim_start_matches('-')
            } else {
                word
            };
            assert!(script.contains(word), "{shell} lacks {word}");
        }
        if let Some(check) = check {
            let file = home.file("completions", &script);
            let status = std::process::Command::new(check[0])
                .arg(check[1])
                .arg(file)
                .status()
                .unwrap();
            assert!(status.success(), "{shell}");
        }
    }
}

#[test]
fn help_says_what_and_shows_examples() {
    let home = TestHome::empty();
    for (command, wanted) in [
        (vec!["--help"], "Examples:\n  atoll run script.py"),
        (
            vec!["run", "--help"],
            "Examples:\n  atoll run script.py one two",
        ),
        (vec!["run", "--help"], "Exit status:"),
        (vec!["shell", "--help"], "Examples:\n  atoll shell"),
        (
            vec!["template", "build", "--help"],
            "Examples:\n  atoll template build base",
        ),
        (
            vec!["completions", "--help"],
            "Example:\n  atoll completions bash",
        ),
        (vec!["doctor", "--help"], "Examples:\n  atoll doctor"),
        (vec!["gc", "--help"], "Examples:\n  atoll gc --dry-run"),
    ] {
        let finished = home.run(&command);
        assert_eq!(
            (finished.code, finished.stderr.as_str()),
            (0, ""),
            "{command:?}"
        );
        assert!(
            finished.stdout.contains(wanted),
            "{command:?}: {}",
            finished.stdout
        );
    }
    let version = home.run(["--version"]).succeeded();
    assert_eq!(version, format!("atoll {}\n", env!("CARGO_PKG_VERSION")));
    assert!(
        !home.run(["--help"]).stdout.contains("monitor"),
        "the hidden command is shown"
    );
}

#[test]
fn after_a_restart_of_the_host_the_home_is_put_in_order() {
    let home = second_home();
    home.python("print(1)").succeeded();
    // As a restart leaves it: a disk and an open record without a lease, another boot, and a
    // record that a power failure cut short.
    let ended = fs::read_dir(home.path().join("sandboxes"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let mut record: Value = serde_json::from_slice(&fs::read(ended.path()).unwrap()).unwrap();
    let id = "iaaaaaaaaaaaaaaaaaaaa";
    record["id"] = id.into();
    record["ended"] = Value::Null;
    let open = home.path().join(format!("sandboxes/{id}.json"));
    fs::write(&open, record.to_string()).unwrap();
    fs::write(home.path().join("sandboxes/ibbbbbbbbbbbbbbbbbbbb.json"), "").unwrap();
    let disk = home.path().join(format!("disks/{id}.img"));
    fs::write(&disk, "").unwrap();
    let memory = home.path().join(format!("checkpoints/{id}"));
    fs::create_dir_all(memory.join("image")).unwrap();
    fs::write(home.path().join("boot.json"), "\"an earlier boot\"").unwrap();

    assert_eq!(home.python("print(6*7)").stdout, "42\n");
    assert!(!disk.exists());
    assert!(!memory.exists());
    let record: Value = serde_json::from_slice(&fs::read(open).unwrap()).unwrap();
    assert_eq!(
        record["ended"]["outcome"],
        json!({"kind": "crashed", "detail": "the host was restarted"})
    );
}
