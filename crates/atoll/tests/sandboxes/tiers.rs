//! What every tier does inside, whatever its kernel is like: becoming root with
//! `sudo`, ending a whole tree, and telling the tiers apart where it should.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    Attachment, CreateError, Limits, MonitoredRuntime, Runtime as _, Sandbox, Tier,
};
use atoll_guest_client::{Command, GuestClient, ProcessEvent, PtySize};
use serde_json::json;

use crate::harness;
use crate::harness::sandboxes::{LIFETIME, Sandboxes, client, initialise};
use crate::harness::{Finished, TestHome, second_home, tier};

const TOKEN: &str = "token of the tests";

fn said(home: &TestHome, code: &str) -> String {
    let finished = home.bash(code);
    assert_eq!(finished.stderr, "", "{code}: {finished:#?}");
    finished.stdout
}

#[test]
fn sudo_runs_a_command_as_somebody_else() {
    let home = second_home();
    let lines = [
        ("sudo id -u", "0"),
        ("sudo -n -u user id -un", "user"),
        ("sudo -u '#1000' id -u", "1000"),
        ("sudo -- id -un", "root"),
        // Exit status, standard input, arguments as they are.
        ("sudo sh -c 'exit 7'; echo $?", "7"),
        ("echo in | sudo cat", "in"),
        ("sudo printf '%s|' 'a  b' '$HOME' ''", "a  b|$HOME||"),
        (
            "exec 2>/dev/null; sudo sh -c 'kill -TERM $$'; echo $?",
            "143",
        ),
        ("sudo no-such-program 2>/dev/null; echo $?", "1"),
        // Where it runs and with which variables.
        ("cd /usr && sudo pwd", "/usr"),
        ("A=1 sudo sh -c 'echo $A.'", "."),
        ("sudo A=2 sh -c 'echo $A'", "2"),
        ("A=3 sudo -E sh -c 'echo $A'", "3"),
        ("A=4 sudo --preserve-env=A sh -c 'echo $A'", "4"),
        (
            "sudo sh -c 'echo $HOME $USER $SUDO_USER'",
            "/root root user",
        ),
        ("sudo -H sh -c 'echo $HOME'", "/root"),
        ("sudo -u user sh -c 'echo $HOME'", "/home/user"),
        ("sudo -i pwd", "/root"),
        ("sudo -s echo 'two  words'", "two  words"),
        ("sudo -v && sudo -k && echo fine", "fine"),
        ("sudo sudo id -u", "0"),
    ];
    let script: Vec<&str> = lines.iter().map(|(line, _)| *line).collect();
    // One sandbox for all; each line in a shell of its own.
    let script: Vec<String> = script
        .iter()
        .map(|line| format!("( {line} ) 2>&1; echo"))
        .collect();
    let got = said(&home, &script.join("\n"));
    let expected: String = lines
        .iter()
        .map(|(line, answer)| {
            let end = if line.contains("printf") {
                "\n"
            } else {
                "\n\n"
            };
            format!("{answer}{end}")
        })
        .collect();
    assert_eq!(got, expected);
}

#[test]
fn sudo_is_for_the_user_and_root_alone() {
    let home = second_home();
    let code = "sudo -u nobody sudo -n id -u >/dev/null 2>&1; echo $?; sudo -u root sudo -n id -u";
    assert_eq!(said(&home, code), "1\n0\n");
}

async fn sandbox(
    sandboxes: &Sandboxes,
) -> (std::sync::Arc<dyn atoll_engine::Sandbox>, GuestClient) {
    let sandbox = sandboxes.create(Limits::default());
    let client = client(&sandbox, TOKEN);
    initialise(&client, TOKEN, &[]).await;
    (sandbox, client)
}

fn bash(script: &str) -> Command {
    Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-c".to_owned(), script.to_owned()],
        ..Command::default()
    }
}

/// Everything that a command prints, to its end.
async fn printed(client: &GuestClient, command: &Command) -> String {
    let mut process = client.start(command).await.unwrap();
    let mut said = Vec::new();
    while let Some(event) = process.next().await.unwrap_or(None) {
        match event {
            ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) => said.extend(bytes),
            ProcessEvent::Pty(bytes) => said.extend(bytes),
            ProcessEvent::End(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_ends_everything_a_command_started_also_through_sudo() {
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = sandbox(&sandboxes).await;
    let script = "setsid sleep 4711 & (setsid sleep 4712 &); nohup sleep 4713 >/dev/null 2>&1 &\n\
        sudo sleep 4714 & sudo sh -c 'sleep 4715; true' &\n\
        while [ $(pgrep -cf '^sleep 471') -lt 5 ]; do sleep 0.05; done; echo all; sleep 4716";
    let command = Command {
        timeout: Some(Duration::from_secs(6)),
        ..bash(script)
    };
    // The positive control: all five ran.
    let said = printed(&client, &command).await;
    assert!(said.starts_with("all\n"), "{said}");
    let left = printed(&client, &bash("pgrep -af '^sleep 471'; echo looked")).await;
    assert_eq!(left, "looked\n");
    sandbox.destroy().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_passes_through_sudo_with_job_control_and_ctrl_c() {
    let sandboxes = Sandboxes::new();
    let (sandbox, client) = sandbox(&sandboxes).await;
    let command = Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["--norc".to_owned(), "-i".to_owned()],
        envs: [
            ("PS1".to_owned(), "> ".to_owned()),
            ("TERM".to_owned(), "dumb".to_owned()),
        ]
        .into(),
        pty: Some(PtySize { cols: 97, rows: 31 }),
        stdin: true,
        ..Command::default()
    };
    let mut process = client.start(&command).await.unwrap();
    let input = process.input();
    let mut screen = String::new();
    // Each waits for the prompt after it: what is typed while a shell comes or
    // goes may be thrown away with the settings of the terminal.
    for (typed, seen) in [
        ("", "> "),
        ("sudo bash --norc -i\n", "\n> "),
        ("echo id-$UID\n", "id-0\r\n> "),
        ("stty size\n", "31 97\r\n> "),
        ("echo me-$((40+2))\n", "me-42\r\n> "),
        // Ctrl-C ends the sleep and not the shell behind `sudo`.
        // Its own word that it runs, which is not in what was typed.
        ("sh -c 'echo st''arted; exec sleep 1000'\n", "started"),
        ("\u{3}", "\n> "),
        ("echo after-$?\n", "after-130\r\n> "),
        ("exit\n", "\n> "),
        ("echo back-$UID\n", "back-1000"),
    ] {
        input.send(typed.as_bytes()).await.unwrap();
        screen.clear();
        let wait = async {
            while !screen.contains(seen) {
                match process.next().await.unwrap() {
                    Some(ProcessEvent::Pty(bytes)) => {
                        screen.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    other => panic!("{other:?} while waiting for {seen}: {screen}"),
                }
            }
        };
        assert!(
            tokio::time::timeout(*harness::BOUND, wait).await.is_ok(),
            "`{seen}` did not come: {screen}"
        );
    }
    sandbox.destroy().unwrap();
}

#[test]
fn the_kernel_inside_is_the_one_of_the_tier() {
    let home = second_home();
    let host = rustix::system::uname();
    let host = host.release().to_str().unwrap();
    let inside = said(&home, "uname -r");
    assert_eq!(inside.trim() == host, tier() == Tier::Container, "{inside}");
    let report = home.run_json(["-l", "bash", "-c", "true"]);
    assert_eq!(report["isolation"], json!(tier().to_string()));
    let host_boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_ne!(
        said(&home, "cat /proc/sys/kernel/random/boot_id").trim(),
        host_boot.trim()
    );
}

#[test]
fn what_cannot_be_had_is_refused_with_a_reason_and_a_fix() {
    let home = second_home();
    let run = || home.atoll(["run", "-l", "bash", "-c", "true"]);
    let refused = |finished: Finished, what: &str, hint: &str| {
        assert_eq!(
            (finished.code, finished.stdout.as_str()),
            (125, ""),
            "{finished:#?}"
        );
        assert!(
            finished.stderr.starts_with(&format!("error: {what}")),
            "{finished:#?}"
        );
        assert!(
            finished.stderr.contains(&format!("hint: {hint}")),
            "{finished:#?}"
        );
    };
    refused(
        run().and_options(&["--isolation", "microvm"]).finish(),
        "the microvm tier is not part of this version of Atoll",
        "choose gvisor or container",
    );
    refused(
        run()
            .and_options(&["--isolation", "container"])
            .env("ATOLL_MINIMUM_ISOLATION", "gvisor")
            .finish(),
        "the container tier is weaker than the required minimum, gvisor",
        "ask for a stronger tier",
    );
    // A minimum in the configuration binds as well, and `auto` meets it.
    home.file("home/config.toml", "minimum_isolation = \"gvisor\"\n");
    let auto = run()
        .and_options(&["--isolation", "auto", "--json"])
        .finish()
        .json();
    assert_eq!(auto["isolation"], json!("gvisor"), "{auto}");
    let broken = || run().env("ATOLL_RUNSC", "/bin/false");
    refused(
        broken().and_options(&["--isolation", "auto"]).finish(),
        "the gvisor tier does not work here: cannot create the sandbox: cannot start gVisor: `/bin/false run` failed",
        "`atoll doctor` tries it again",
    );
    home.file("home/config.toml", "isolation = \"auto\"\n");
    let fallen = broken()
        .without_env("ATOLL_ISOLATION")
        .and_options(&["--json"])
        .finish()
        .json();
    assert_eq!(fallen["isolation"], json!("container"), "{fallen}");
    let reason = fallen["isolation_reason"].as_str().unwrap();
    assert!(
        reason.starts_with("the gvisor tier does not work here"),
        "{reason}"
    );
}

#[test]
fn a_runtime_that_only_calls_itself_gvisor_is_found_out() {
    let home = second_home();
    // Takes gVisor's options and runs the bundle as a container on the host's kernel.
    let impostor = home.file(
        "impostor",
        "#!/bin/sh\necho 'runsc version 99999999.0'\nexit 0\n",
    );
    fs::set_permissions(&impostor, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = home
        .atoll(["run", "--isolation", "gvisor", "-l", "bash", "-c", "true"])
        .env("ATOLL_RUNSC", &impostor)
        .finish();
    assert_eq!(refused.code, 125, "{refused:#?}");
    assert!(
        refused
            .stderr
            .starts_with("error: the gvisor tier does not work here"),
        "{refused:#?}"
    );
}

/// A sandbox of the template with `layer` above it.
fn with_layer(sandboxes: &Sandboxes, layer: PathBuf) -> Result<Arc<dyn Sandbox>, CreateError> {
    let mut spec = sandboxes.spec(Attachment::Client, LIFETIME, Limits::default());
    spec.layers.insert(0, layer);
    let runtime = MonitoredRuntime::new(sandboxes.config.clone(), tier());
    runtime.create(&spec).map(Arc::from)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_may_have_links_where_the_host_puts_files() {
    let sandboxes = Sandboxes::new();
    let layer = sandboxes.home.work().join("links");
    fs::create_dir_all(layer.join("etc")).unwrap();
    // As Debian's images have it; one to a file of the template; one in a circle.
    symlink(
        "../run/resolvconf/resolv.conf",
        layer.join("etc/resolv.conf"),
    )
    .unwrap();
    symlink("/etc/shells", layer.join("etc/hosts")).unwrap();
    symlink("hostname", layer.join("etc/hostname")).unwrap();
    let sandbox = with_layer(&sandboxes, layer.clone()).unwrap();
    let client = client(&sandbox, TOKEN);
    initialise(&client, TOKEN, &[]).await;
    let script = "stat -c '%A %U' /etc/hosts /etc/resolv.conf /etc/hostname; cat /etc/resolv.conf; \
        grep -c \"$(cat /etc/hostname)\" /etc/hosts; \
        echo more | sudo tee -a /etc/hosts; tail -1 /etc/hosts; grep -c more /etc/shells";
    let said = printed(&client, &bash(script)).await;
    let file = "-rw-r--r-- root\n";
    let expected = format!("{file}{file}{file}# This sandbox has no network.\n1\nmore\nmore\n0\n");
    assert_eq!(said, expected);
    sandbox.destroy().unwrap();
    // What the template has is as it was.
    let link = fs::read_link(layer.join("etc/hosts")).unwrap();
    assert_eq!(link, PathBuf::from("/etc/shells"));
}

#[test]
fn a_template_without_a_place_for_mounts_is_refused_with_a_fix() {
    let sandboxes = Sandboxes::new();
    for name in ["proc", "sys", "dev", "run", "etc"] {
        let layer = sandboxes.home.work().join(format!("link-{name}"));
        fs::create_dir_all(&layer).unwrap();
        symlink("/tmp", layer.join(name)).unwrap();
        let Err(CreateError::Host { what, hint }) = with_layer(&sandboxes, layer) else {
            panic!("a link at /{name} was taken");
        };
        let expected =
            format!("cannot use the template: its `/{name}` is a link, where a directory must be");
        assert_eq!(what, expected);
        let hint = hint.unwrap();
        assert!(
            hint.contains(&format!("`/{name}` as an empty directory")),
            "{hint}"
        );
    }
    // The positive control: a directory, or nothing, is fine.
    let layer = sandboxes.home.work().join("directory");
    fs::create_dir_all(layer.join("proc")).unwrap();
    with_layer(&sandboxes, layer).unwrap().destroy().unwrap();
}
