//! The commands that ask a server: `ps`, `create`, `exec`, `cp`, `logs`,
//! `inspect`, `timeout`, `kill`, `env`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::{Value, json};

use crate::harness::server::Server;
use crate::harness::{Finished, Invocation, TestHome, second_home};

/// A server, and one sandbox of it.
struct Stand {
    server: Server,
    sandbox: String,
}

impl Stand {
    fn new() -> Self {
        let server = Server::start(second_home());
        let created = command(&server.home, &["create"]).finish();
        let sandbox = created.clone().succeeded().trim().to_owned();
        assert_eq!(created, Finished::printed(&format!("{sandbox}\n")));
        Self { server, sandbox }
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        command(&self.server.home, arguments).finish()
    }

    /// A command in the sandbox.
    fn exec(&self, options: &[&str], words: &[&str]) -> Finished {
        let mut arguments = vec!["exec", &self.sandbox];
        arguments.extend(options);
        arguments.push("--");
        arguments.extend(words);
        self.run(&arguments)
    }

    /// A path in the sandbox, as `cp` takes it.
    fn inside(&self, path: &str) -> String {
        format!("{}:{path}", self.sandbox)
    }
}

/// A command that knows only its home.
fn command(home: &TestHome, arguments: &[&str]) -> Invocation {
    [
        "E2B_API_KEY",
        "E2B_API_URL",
        "E2B_SANDBOX_URL",
        "E2B_DOMAIN",
    ]
    .iter()
    .fold(home.atoll(arguments), |command, name| {
        command.without_env(name)
    })
}

#[test]
fn a_sandbox_is_made_listed_looked_at_and_ended() {
    let server = Server::start(second_home());
    let run = |arguments: &[&str]| command(&server.home, arguments).finish();
    let none = run(&["ps"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""));
    assert!(none.stderr.starts_with("no sandboxes\nhint: "), "{none:#?}");
    assert_eq!(run(&["ps", "--json"]), Finished::printed("[]\n"));

    let made = run(&[
        "create",
        "base",
        "--timeout",
        "10m",
        "-m",
        "user=ada",
        "-e",
        "X=1",
        "--json",
    ]);
    let made = made.json();
    let id = made["sandbox_id"].as_str().unwrap();
    let other = run(&["create"]).succeeded();
    let other = other.trim();

    let listed = run(&["ps"]).succeeded();
    let line = listed.lines().find(|line| line.contains(id)).unwrap();
    for word in ["base", "running", "in 10 min", "1024 MiB", "user=ada"] {
        assert!(line.contains(word), "no {word} in {line}");
    }
    assert!(listed.contains(other));
    let filtered = run(&["ps", "--metadata", "user=ada", "--json"]).json();
    let names: Vec<_> = filtered
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["sandboxID"])
        .collect();
    assert_eq!(names, [&json!(id)]);
    assert_eq!(
        run(&["ps", "--template", "nothing", "--json"]),
        Finished::printed("[]\n")
    );

    let said = run(&["exec", id, "--", "sh", "-c", "echo $X"]);
    assert_eq!(said, Finished::printed("1\n"));

    let shown = run(&["inspect", id]).succeeded();
    assert!(
        shown.contains("memoryMB") && shown.contains("1024"),
        "{shown}"
    );
    assert!(!shown.contains("envdAccessToken"), "{shown}");
    let detail = run(&["inspect", id, "--json"]).json();
    assert_eq!(detail["metadata"], json!({"user": "ada"}));
    assert!(detail["envdAccessToken"].is_string());

    let longer = run(&["timeout", id, "2h"]);
    assert_eq!((longer.code, longer.stdout.as_str()), (0, ""));
    assert!(
        longer.stderr.starts_with(&format!("{id} ends at ")),
        "{longer:#?}"
    );
    assert!(run(&["ps"]).succeeded().contains("in 2 h"));

    let log = run(&["logs", id]).succeeded();
    assert!(log.contains("INFO  sandbox started"), "{log}");
    let log = run(&["logs", id, "--json"]).succeeded();
    let entry: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(entry["message"], "sandbox started");

    assert_eq!(run(&["kill", id]), Finished::printed(&format!("{id}\n")));
    let gone = run(&["kill", id]);
    let expected =
        format!("error: there is no sandbox `{id}`\nhint: `atoll ps` shows those that run\n");
    assert_eq!((gone.code, gone.stderr), (125, expected));
    assert_eq!(
        run(&["kill", "--all"]),
        Finished::printed(&format!("{other}\n"))
    );
    assert_eq!(run(&["ps", "--json"]), Finished::printed("[]\n"));
}

#[test]
fn a_command_in_a_sandbox_is_as_if_it_ran_here() {
    let stand = Stand::new();
    let printed = stand.exec(&[], &["python3", "-c", "print(6*7)"]);
    assert_eq!(printed, Finished::printed("42\n"));
    let both = stand.exec(&[], &["sh", "-c", "echo out; echo err >&2; exit 3"]);
    let expected = Finished {
        code: 3,
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
    };
    assert_eq!(both, expected);
    assert_eq!(stand.exec(&[], &["sh", "-c", "kill -9 $$"]).code, 137);
    let options = ["--user", "root", "--cwd", "/tmp", "--env", "A=b c"];
    let who = stand.exec(&options, &["sh", "-c", "whoami; pwd; echo $A"]);
    assert_eq!(who, Finished::printed("root\n/tmp\nb c\n"));

    let home = &stand.server.home;
    let words = ["exec", &stand.sandbox, "--", "sha256sum"];
    let input: Vec<u8> = (0..3_000_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let summed = command(home, &words).stdin(&input).finish().succeeded();
    let here = std::process::Command::new("sh")
        .args(["-c", "python3 -c 'import sys; sys.stdout.buffer.write(bytes(n % 251 for n in range(3000000)))' | sha256sum"])
        .output()
        .unwrap();
    assert_eq!(summed, String::from_utf8(here.stdout).unwrap());

    let late = stand.exec(&["--timeout", "1s"], &["sleep", "600"]);
    assert_eq!(late.code, 124);
    assert_eq!(
        late.stderr,
        "error: the command reached its timeout\nhint: allow more with --timeout\n"
    );
    let missing = stand.exec(&[], &["no-such-program"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (125, ""));
    assert!(
        missing
            .stderr
            .starts_with("error: cannot start `no-such-program`"),
        "{missing:#?}"
    );
    let untyped = stand.exec(&["--tty"], &["bash"]);
    assert_eq!(untyped.code, 125);
    assert!(
        untyped.stderr.contains("`--tty` needs a terminal"),
        "{untyped:#?}"
    );
}

#[test]
fn files_and_directories_are_copied_both_ways_and_checked() {
    let stand = Stand::new();
    let home = &stand.server.home;
    let work = home.work().to_owned();
    let content: Vec<u8> = (0..20_000_000_u32)
        .map(|number| (number % 253) as u8)
        .collect();
    fs::write(work.join("big"), &content).unwrap();
    let tree = work.join("tree");
    fs::create_dir_all(tree.join("deep/empty")).unwrap();
    fs::write(tree.join("plain"), "text").unwrap();
    fs::write(tree.join("deep/nothing"), "").unwrap();
    fs::write(tree.join("deep/a name with  spaces\nand a line"), "odd").unwrap();
    fs::write(tree.join("program"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(tree.join("program"), fs::Permissions::from_mode(0o755)).unwrap();

    let copied = stand.run(&["cp", "big", &stand.inside("data/")]);
    assert_eq!(
        (copied.code, copied.stdout.as_str()),
        (0, ""),
        "{copied:#?}"
    );
    assert_eq!(copied.stderr, "1 files, 19 MiB, checked\n");
    assert_eq!(stand.run(&["cp", "tree", &stand.inside("tree")]).code, 0);
    let ran = stand.exec(
        &[],
        &[
            "sh",
            "-c",
            "./tree/program; ls -d tree/deep/empty; stat -c %s data/big",
        ],
    );
    assert_eq!(ran, Finished::printed("ran\ntree/deep/empty\n20000000\n"));

    assert_eq!(
        stand.run(&["cp", &stand.inside("data/big"), "back"]).code,
        0
    );
    assert!(fs::read(work.join("back")).unwrap() == content);
    assert_eq!(
        stand.run(&["cp", &stand.inside("tree"), "tree-back"]).code,
        0
    );
    let mut difference = std::process::Command::new("diff");
    difference.arg("-r").arg(&tree).arg(work.join("tree-back"));
    assert!(difference.status().unwrap().success());
    // Into a directory that is there, as `cp` does.
    fs::create_dir(work.join("there")).unwrap();
    assert_eq!(
        stand
            .run(&["cp", &stand.inside("tree/plain"), "there"])
            .code,
        0
    );
    assert_eq!(
        fs::read_to_string(work.join("there/plain")).unwrap(),
        "text"
    );
    // Where only root may write.
    assert_eq!(
        stand
            .run(&["cp", "tree/program", &stand.inside("/root/program")])
            .code,
        0
    );
    let ran = stand.exec(&["--user", "root"], &["/root/program"]);
    assert_eq!(ran, Finished::printed("ran\n"));

    for (source, target, what) in [
        ("big", "other", "error: neither side is in a sandbox"),
        (
            &*stand.inside("a"),
            &*stand.inside("b"),
            "error: both sides are in sandboxes",
        ),
        (
            "missing",
            &*stand.inside("x"),
            "error: cannot read `missing`",
        ),
        (
            &*stand.inside("missing"),
            "x",
            "error: there is nothing at `missing` in the sandbox",
        ),
    ] {
        let refused = stand.run(&["cp", source, target]);
        assert_eq!(refused.code, 125, "{refused:#?}");
        assert!(refused.stderr.starts_with(what), "{refused:#?}");
    }
}

#[test]
fn what_a_sandbox_offers_stays_where_it_is_copied_to() {
    let stand = Stand::new();
    let work = stand.server.home.work().to_owned();
    let script = "mkdir -p trap && cd trap && ln -s /etc/passwd link && ln -s .. up && ln -s ../../../outside dangling && mkfifo pipe && echo fine > file";
    assert_eq!(stand.exec(&[], &["sh", "-c", script]).code, 0);
    let copied = stand.run(&["cp", &stand.inside("trap"), "caught"]);
    assert_eq!(copied.code, 0, "{copied:#?}");
    for name in ["link", "up", "dangling", "pipe"] {
        assert!(
            copied.stderr.contains(&format!("trap/{name}` is ")),
            "{copied:#?}"
        );
        assert!(work.join("caught").join(name).symlink_metadata().is_err());
    }
    assert_eq!(
        fs::read_to_string(work.join("caught/file")).unwrap(),
        "fine\n"
    );

    // A link of the user's own on this side to a directory is not followed into the sandbox.
    fs::create_dir(work.join("mine")).unwrap();
    symlink("/etc", work.join("mine/etc")).unwrap();
    let refused = stand.run(&["cp", "mine", &stand.inside("mine")]);
    assert_eq!(refused.code, 125);
    assert!(
        refused.stderr.contains("is a link to a directory"),
        "{refused:#?}"
    );
}

#[test]
fn a_server_is_found_by_its_home_or_by_the_variables_of_e2b() {
    let server = Server::start(second_home());
    let stranger = second_home();
    let unserved = command(&stranger, &["ps"]).finish();
    assert_eq!(unserved.code, 125);
    assert!(
        unserved
            .stderr
            .starts_with("error: no server runs with the home "),
        "{unserved:#?}"
    );
    assert!(
        unserved
            .stderr
            .contains("hint: start one with `atoll serve`"),
        "{unserved:#?}"
    );
    assert_eq!(command(&stranger, &["env"]).finish().code, 125);

    let variables = command(&server.home, &["env"]).finish().succeeded();
    let remote = |arguments: &[&str]| {
        variables
            .lines()
            .fold(command(&stranger, arguments), |command, line| {
                let (name, value) = line
                    .strip_prefix("export ")
                    .unwrap()
                    .split_once('=')
                    .unwrap();
                command.env(name, value)
            })
    };
    let id = remote(&["create"]).finish().succeeded();
    let said = remote(&["exec", id.trim(), "--", "echo", "there"]).finish();
    assert_eq!(said, Finished::printed("there\n"));

    let wrong = remote(&["ps"]).env("E2B_API_KEY", "e2b_0000").finish();
    assert_eq!(wrong.code, 125);
    assert!(
        wrong
            .stderr
            .starts_with("error: the server refused the API key"),
        "{wrong:#?}"
    );
    let nowhere = remote(&["ps"])
        .env("E2B_API_URL", "http://127.0.0.1:1")
        .finish();
    assert!(
        nowhere
            .stderr
            .starts_with("error: cannot reach 127.0.0.1:1"),
        "{nowhere:#?}"
    );
    let crooked = remote(&["ps"]).env("E2B_API_URL", "127.0.0.1").finish();
    assert!(
        crooked
            .stderr
            .contains("it must begin with `http://` or `https://`"),
        "{crooked:#?}"
    );
    let json = command(&server.home, &["env", "--json"]).finish().json();
    assert_eq!(json["E2B_API_URL"], server.announced["url"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_advice() {
    let server = Server::start(second_home());
    let run = |arguments: &[&str]| command(&server.home, arguments).finish();
    for (arguments, what) in [
        (&["create", "nothing-like-that"][..], "nothing-like-that"),
        (&["create", "--metadata", "novalue"], "is not NAME=VALUE"),
        (
            &["create", "--deny-out", "not-an-address"],
            "not-an-address",
        ),
        (
            &["exec", "i00000000000000000000", "--", "true"],
            "there is no sandbox",
        ),
        (&["logs", "../../etc"], "there is no sandbox"),
        (&["inspect", "a/b"], "there is no sandbox"),
        (&["timeout", "nope", "1m"], "there is no sandbox"),
    ] {
        let refused = run(arguments);
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (125, ""),
            "{refused:#?}"
        );
        assert!(refused.stderr.starts_with("error: "), "{refused:#?}");
        assert!(refused.stderr.contains(what), "{refused:#?}");
    }
    assert_eq!(run(&["kill"]).code, 2);
    assert_eq!(run(&["exec", "x"]).code, 2);
    assert_eq!(run(&["shell", "x", "--memory", "1G"]).code, 2);
}
