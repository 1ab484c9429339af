//! Bad input and bad hosts: a clear error, a hint, and nothing left behind.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{self, Finished, TestHome, second_home, shared_home};

/// A failure of Atoll itself: explained, with advice, and nothing on standard output.
#[track_caller]
fn assert_refused(finished: &Finished, parts: &[&str]) {
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (125, ""),
        "{finished:#?}"
    );
    assert!(finished.stderr.starts_with("error: "), "{finished:#?}");
    for part in parts {
        assert!(
            finished.stderr.contains(part),
            "no {part:?} in {finished:#?}"
        );
    }
    assert!(
        finished.stderr.contains("\nhint: "),
        "no hint: {finished:#?}"
    );
}

/// A mistake on the command line, as clap tells it.
#[track_caller]
fn assert_usage(finished: &Finished, part: &str) {
    assert_eq!(
        (finished.code, finished.stdout.as_str()),
        (2, ""),
        "{finished:#?}"
    );
    assert!(
        finished.stderr.starts_with("error: ") && finished.stderr.contains(part),
        "{finished:#?}"
    );
    assert!(finished.stderr.contains("--help"), "{finished:#?}");
}

/// No sandbox was ever made in this home.
#[track_caller]
fn assert_untouched(home: &TestHome) {
    assert!(!home.path().join("sandboxes").exists() && !home.path().join("disks").exists());
}

#[test]
fn mistakes_on_the_command_line_are_shown() {
    let home = second_home();
    for (arguments, part) in [
        (vec!["run"], "PROGRAM"),
        (vec!["run", "-l", "cobol", "-c", "x"], "cobol"),
        (
            vec!["run", "--memory", "lots", "x.py"],
            "`lots` is not a size",
        ),
        (vec!["run", "--memory", "-5", "x.py"], "-5"),
        (
            vec!["run", "--cpus", "many", "x.py"],
            "`many` is not a number of CPUs",
        ),
        (
            vec!["run", "--timeout", "0", "x.py"],
            "`0` is not a duration",
        ),
        (
            vec!["run", "--timeout", "soon", "x.py"],
            "`soon` is not a duration",
        ),
        (vec!["run", "--pids", "few", "x.py"], "few"),
        (vec!["run", "--net", "wifi", "x.py"], "wifi"),
        (vec!["run", "--isolation", "magic", "x.py"], "magic"),
        (vec!["explode"], "explode"),
        (vec!["template", "build"], "SPEC"),
        (vec!["completions", "tcsh"], "tcsh"),
    ] {
        assert_usage(&home.run(&arguments), part);
    }
    assert_untouched(&home);
}

#[test]
fn programs_that_cannot_be_run_are_refused() {
    let home = second_home();
    home.file("mystery", "print(1)");
    home.file("latin1.py", b"# caf\xe9\n");
    home.file("null.txt", "x");
    fs::create_dir(home.work().join("directory.py")).unwrap();
    symlink("loop.py", home.work().join("loop.py")).unwrap();
    for (arguments, parts) in [
        (
            vec!["run", "missing.py"],
            vec!["cannot read the program `missing.py`", "No such file"],
        ),
        (
            vec!["run", "directory.py"],
            vec!["`directory.py` is not a file"],
        ),
        (
            vec!["run", "loop.py"],
            vec!["cannot read the program `loop.py`"],
        ),
        (
            vec!["run", "mystery"],
            vec!["cannot tell the language of the program"],
        ),
        (
            vec!["run", "-c", "print(1)"],
            vec!["cannot tell the language of the program"],
        ),
        (vec!["run", "latin1.py"], vec!["not valid UTF-8 (byte 5)"]),
    ] {
        assert_refused(&home.run(&arguments), &parts);
    }
    let by_input = home
        .atoll(["run", "-l", "python", "-"])
        .stdin(b"print('\xff')")
        .finish();
    assert_refused(&by_input, &["not valid UTF-8 (byte 7)"]);
    assert_untouched(&home);
}

#[test]
fn two_gigabytes_of_program_are_refused_at_once() {
    let home = second_home();
    File::create(home.work().join("huge.py"))
        .unwrap()
        .set_len(2 << 30)
        .unwrap();
    let start = Instant::now();
    assert_refused(
        &home.run(["run", "huge.py"]),
        &["`huge.py` is larger than 16 MiB"],
    );
    // Reading all of it takes longer than this by far.
    assert!(start.elapsed() < Duration::from_secs(10));
    let endless = home
        .atoll([
            "-c",
            "exec \"$0\" run -l python - < /dev/zero",
            harness::binary().to_str().unwrap(),
        ])
        .instead("/bin/sh".as_ref())
        .finish();
    assert_refused(&endless, &["standard input is larger than 16 MiB"]);
    assert_untouched(&home);
}

#[test]
fn files_that_are_not_there_or_not_files_are_refused() {
    let home = second_home();
    home.file("here", "x");
    let pipe = home.work().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    fs::create_dir(home.work().join("circle")).unwrap();
    for name in ["one", "two"] {
        symlink(".", home.work().join("circle").join(name)).unwrap();
    }
    for (file, part) in [
        ("here", "`--file here` is not SOURCE:TARGET"),
        (":target", "is not SOURCE:TARGET"),
        ("here:", "is not SOURCE:TARGET"),
        ("missing:target", "cannot read `missing`"),
        ("pipe:target", "pipe"),
        ("circle:target", "circle"),
        ("/dev/zero:target", "/dev/zero"),
    ] {
        assert_refused(
            &home.run(["run", "--file", file, "-l", "bash", "-c", "true"]),
            &[part],
        );
    }
    for (target, part) in [("/proc/1/x", "/proc/1/x"), ("/home/user", "/home/user")] {
        let file = format!("here:{target}");
        let finished = home.run(["run", "--file", &file, "-l", "bash", "-c", "true"]);
        assert_refused(&finished, &[part]);
    }
}

#[test]
fn variables_that_cannot_be_are_refused() {
    let home = second_home();
    for (variable, part) in [
        ("=value", "has no name"),
        ("ATOLL_NOT_SET", "no such variable in your environment"),
    ] {
        assert_refused(
            &home.run(["run", "-e", variable, "-l", "bash", "-c", "true"]),
            &[part],
        );
    }
    assert_untouched(&home);
}

#[test]
fn templates_that_are_not_there_are_named_with_those_that_are() {
    let home = second_home();
    let run = ["run", "-t", "nobody", "-l", "bash", "-c", "true"];
    assert_refused(
        &home.run(run),
        &["there is no template `nobody`", "hint: templates: base"],
    );
    for name in ["", "../etc", "a b", "UPPER/case", "."] {
        assert_refused(
            &home.run(["run", "-t", name, "-l", "bash", "-c", "true"]),
            &[],
        );
        assert_refused(&home.run(["template", "inspect", name]), &[]);
    }
    assert_refused(
        &home.run(["template", "inspect", "nobody"]),
        &["there is no template `nobody`"],
    );
    assert_refused(
        &home.run(["template", "rm", "nobody"]),
        &["there is no template `nobody`"],
    );
    assert_refused(
        &home.run(["template", "build", "nobody.toml"]),
        &["there is no spec file `nobody.toml`"],
    );
    assert_untouched(&home);
}

#[test]
fn without_root_the_way_to_it_is_shown() {
    let home = second_home();
    // A copy where everybody may run it, and a home where everybody may write.
    let open = tempfile::Builder::new()
        .prefix("atoll-open-")
        .tempdir_in("/tmp")
        .unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = open.path().join("atoll");
    fs::copy(harness::binary(), &program).unwrap();
    for arguments in [
        vec!["run", "-l", "bash", "-c", "true"],
        vec!["gc"],
        vec!["template", "build", "base"],
    ] {
        let finished = home
            .atoll(&arguments)
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
        assert_refused(
            &finished,
            &["takes root", "hint: run the same command with `sudo`"],
        );
    }
}

#[test]
fn a_missing_package_is_named() {
    let home = second_home();
    let empty = home.work().join("bin");
    fs::create_dir(&empty).unwrap();
    let finished = home
        .atoll(["run", "-l", "bash", "-c", "true"])
        .env("PATH", &empty)
        .finish();
    assert_refused(&finished, &["`mkfs.ext4` is not installed", "e2fsprogs"]);
    home.assert_nothing_left("without mkfs.ext4");
}

#[test]
fn a_host_without_cgroups_is_told_apart() {
    let home = second_home();
    let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" run -l bash -c true";
    let finished = home
        .atoll(["-c", script, harness::binary().to_str().unwrap()])
        .instead("/bin/sh".as_ref())
        .through(["unshare", "--mount", "--propagation", "private"])
        .finish();
    assert_refused(&finished, &["cgroup"]);
    home.assert_nothing_left("without cgroups");
    assert_eq!(home.python("print(6*7)"), Finished::printed("42\n"));
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left_on_it() {
    let home = second_home();
    let shared = shared_home();
    // Room for a home, but not for a disk; then not even for the home.
    for (size, part) in [("6m", "No space left"), ("64k", "No space left")] {
        let script = format!(
            "mount -t tmpfs -o size={size} none '{0}' && \
             for part in templates layers blobs; do ln -s '{1}'/$part '{0}'/$part; done && \
             \"$0\" run -l bash -c true; code=$?; find '{0}' -path '*/disks/i*' -o -name 'unfinished*' -o -name 'new-*' >&2; exit $code",
            home.path().display(),
            shared.display()
        );
        let finished = home
            .atoll(["-c", &script, harness::binary().to_str().unwrap()])
            .instead("/bin/sh".as_ref())
            .through(["unshare", "--mount", "--propagation", "private"])
            .finish();
        assert_refused(&finished, &[part]);
        let found = finished.stderr.lines().filter(|line| line.starts_with('/'));
        assert_eq!(found.collect::<Vec<_>>(), Vec::<&str>::new(), "{size}");
        home.assert_nothing_left("on a full disk");
    }
}

#[test]
fn a_broken_configuration_is_named_with_its_line() {
    let home = second_home();
    for (text, part) in [
        ("oci_runtime = ", "line 1"),
        ("colour = \"red\"", "unknown field `colour`"),
        ("network_range = \"10.0.0.0/31\"", "between /8 and /30"),
        ("oci_runtime = \"nobody\"", "`nobody` is not installed"),
    ] {
        fs::write(home.path().join("config.toml"), text).unwrap();
        let finished = home.run(["run", "-l", "bash", "-c", "true"]);
        assert_refused(&finished, &[part]);
    }
    assert_untouched(&home);
}

#[test]
fn a_home_that_cannot_be_one_is_refused() {
    let home = second_home();
    let file = home.file("not-a-directory", "x");
    for path in [file.to_str().unwrap(), "/proc/nowhere", ""] {
        let finished = home
            .atoll(["--home", path, "run", "-l", "bash", "-c", "true"])
            .finish();
        assert!([2, 125].contains(&finished.code), "{finished:#?}");
        assert!(finished.stderr.starts_with("error: "), "{finished:#?}");
    }
}
