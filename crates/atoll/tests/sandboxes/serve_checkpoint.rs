//! Pauses under gVisor: memory goes to disk, and comes back as it was, or not at all.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Command;

use atoll_engine::Tier;
use serde_json::{Value, json};

use super::serve_pause::Sandbox;
use crate::harness::server::{Ask, Server};
use crate::harness::{TestHome, eventually, names_below, processes_of, second_home, tier};

/// Counts without end, a line at a time.
pub(super) const JOB: &str =
    "i=0; while true; do i=$((i+1)); echo $i >> /home/user/job; sleep 0.02; done";

pub(super) fn is_elsewhere() -> bool {
    tier() != Tier::Gvisor
}

fn images(home: &TestHome) -> PathBuf {
    home.path().join("checkpoints")
}

fn pause(sandbox: &Sandbox<'_>) {
    sandbox.ask("POST", "/pause", None).expect(204);
}

fn connect(sandbox: &Sandbox<'_>) -> Value {
    sandbox.ask("POST", "/connect", Some(json!({}))).expect(201)
}

/// Runs Python code and gives what it printed.
pub(super) fn python(sandbox: &Sandbox<'_>, code: &str) -> String {
    let ask = Ask {
        method: "POST",
        target: "/execute",
        headers: vec![
            ("e2b-sandbox-id", sandbox.id.clone()),
            ("e2b-sandbox-port", "49999".to_owned()),
            ("x-access-token", sandbox.token.clone()),
            ("content-type", "application/json".to_owned()),
        ],
        body: Some(json!({"code": code}).to_string().into_bytes()),
    };
    let mut reply = String::new();
    let mut stream = sandbox.server.open(&ask).unwrap();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("end_of_execution"), "{reply}");
    reply
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["type"] == "stdout")
        .filter_map(|line| Some(line["text"].as_str()?.to_owned()))
        .collect()
}

#[test]
fn memory_is_on_disk_while_it_is_paused_and_only_then() {
    if is_elsewhere() {
        return;
    }
    let mut server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({}));
    let boot = sandbox.read("/proc/sys/kernel/random/boot_id").body;
    assert!(!processes_of(&sandbox.id).is_empty());
    pause(&sandbox);
    assert_eq!(
        processes_of(&sandbox.id),
        Vec::<i32>::new(),
        "its memory is free"
    );
    assert_eq!(names_below(&images(&server.home)), [sandbox.id.as_str()]);

    // It outlives its server.
    let (id, token) = (sandbox.id.clone(), sandbox.token.clone());
    server.crash();
    server.start_again();
    let sandbox = Sandbox {
        server: &server,
        id,
        token,
    };
    assert_eq!(sandbox.state(), "paused");
    connect(&sandbox);
    assert_eq!(sandbox.read("/proc/sys/kernel/random/boot_id").body, boot);
    eventually("the end of its image", || {
        names_below(&images(&server.home)).is_empty().then_some(())
    });
    // One that is killed while it has no processes leaves nothing.
    pause(&sandbox);
    sandbox.ask("DELETE", "", None).expect(204);
    assert_eq!(names_below(&images(&server.home)), Vec::<String>::new());
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn memory_that_somebody_touched_is_not_restored() {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let (one, other) = (
        Sandbox::make(&server, json!({})),
        Sandbox::make(&server, json!({})),
    );
    other.write("/home/user/secret", "of another tenant");
    pause(&one);
    pause(&other);
    let image = |sandbox: &Sandbox<'_>| images(&server.home).join(&sandbox.id).join("image");
    // Whole files of another sandbox in the place of its own.
    for name in names_below(&image(&other)) {
        fs::copy(image(&other).join(&name), image(&one).join(&name)).unwrap();
    }
    let refused = one.ask("POST", "/connect", Some(json!({}))).is_error(503);
    assert!(refused.contains("stays paused"), "{refused}");
    assert!(refused.contains("changed or replaced"), "{refused}");
    assert_eq!(one.state(), "paused");
    one.ask("DELETE", "", None).expect(204);
    connect(&other);
    assert_eq!(other.read("/home/user/secret").body, "of another tenant");
}

/// A small file system in the place of a directory of the home.
pub(super) struct SmallRoom(PathBuf);

impl SmallRoom {
    pub(super) fn over(home: &TestHome, directory: &str) -> Self {
        let place = home.path().join(directory);
        fs::create_dir_all(&place).unwrap();
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                "size=1m",
                "none",
                place.to_str().unwrap(),
            ],
        );
        Self(place)
    }

    pub(super) fn grow(&self) {
        run(
            "mount",
            &["-o", "remount,size=2g", self.0.to_str().unwrap()],
        );
    }
}

impl Drop for SmallRoom {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

#[test]
fn a_pause_without_room_costs_no_sandbox() {
    if is_elsewhere() {
        return;
    }
    let home = second_home();
    let room = SmallRoom::over(&home, "checkpoints");
    let server = Server::start(home);
    let sandbox = Sandbox::make(&server, json!({}));
    sandbox.write("/home/user/kept", "kept");
    for _ in 0..2 {
        let refused = sandbox.ask("POST", "/pause", None).is_error(503);
        assert!(refused.contains("runs on"), "{refused}");
        assert_eq!(sandbox.state(), "running");
        assert_eq!(sandbox.read("/home/user/kept").body, "kept");
        assert_eq!(names_below(&images(&server.home)), Vec::<String>::new());
    }
    room.grow();
    pause(&sandbox);
    connect(&sandbox);
    assert_eq!(sandbox.read("/home/user/kept").body, "kept");
    sandbox.ask("DELETE", "", None).expect(204);
}

#[test]
fn a_monitor_that_is_killed_at_a_checkpoint_leaves_nothing() {
    if is_elsewhere() {
        return;
    }
    for moment in ["before", "after"] {
        let point = format!("checkpoint:{moment}");
        let server = Server::start_with(second_home(), &[("ATOLL_FAILPOINT", &point)]);
        let sandbox = Sandbox::make(&server, json!({}));
        let answer = sandbox.ask("POST", "/pause", None);
        assert_ne!(answer.status, 204, "{point} is not reached");
        eventually("its end", || {
            (server.get(&sandbox.id).status == 404 && server.leased().is_empty()).then_some(())
        });
        assert_eq!(names_below(&images(&server.home)), Vec::<String>::new());
    }
}

#[test]
fn random_numbers_are_others_after_a_restore() {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({}));
    let code = "import random; random.seed(1); kept = 42; print(random.random())";
    assert_eq!(python(&sandbox, code), "0.13436424411240122\n");
    pause(&sandbox);
    connect(&sandbox);
    let next = python(&sandbox, "print(kept, random.random())");
    assert!(next.starts_with("42 "), "{next}");
    assert_ne!(next, "42 0.8474337369372327\n", "as without a pause");
    // Once for each restore: what is seeded afterwards stays.
    python(&sandbox, "random.seed(1)");
    let again = python(&sandbox, "print(random.random())");
    assert_eq!(again, "0.13436424411240122\n");
}

#[test]
fn work_goes_on_after_each_restore() {
    work_through(6);
}

#[test]
#[ignore = "long: 60 cycles"]
fn work_goes_on_after_each_of_sixty_restores() {
    work_through(60);
}

/// Pauses and wakes up a sandbox in which a service and a job are at work.
fn work_through(cycles: usize) {
    if is_elsewhere() {
        return;
    }
    let server = Server::start(second_home());
    let sandbox = Sandbox::make(&server, json!({}));
    sandbox.start_ticker();
    sandbox.write("/home/user/job.sh", JOB);
    sandbox.start("exec sh /home/user/job.sh");
    let mut last = 0;
    for cycle in 0..cycles {
        let path = format!("/home/user/file-{cycle}");
        let text = format!("{cycle} ").repeat(20_000);
        sandbox.write(&path, &text);
        pause(&sandbox);
        connect(&sandbox);
        let page = server.reach(&sandbox.id, 8000, "/", &[]);
        assert_eq!(page.status, 200, "cycle {cycle}: {page:#?}");
        assert!(sandbox.read(&path).body == text, "{path} is another");
        last = eventually("the next line of the job", || {
            let lines = sandbox.read("/home/user/job").body;
            let lines: Vec<usize> = lines.lines().map(|line| line.parse().unwrap()).collect();
            assert!(lines.iter().copied().eq(1..=lines.len()), "cycle {cycle}");
            (lines.len() > last).then_some(lines.len())
        });
    }
}
