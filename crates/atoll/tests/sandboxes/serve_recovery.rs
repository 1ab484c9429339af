//! What is left, and what is told, after something went wrong on the host.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::server::Server;
use crate::harness::{binary, eventually, init_of, second_home};

/// Kinds and reasons of what was told of a sandbox.
fn told(server: &Server, id: &str) -> Vec<(String, String)> {
    let page = server.ask("GET", &format!("/events?sandbox={id}"), None);
    let page = page.expect(200);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = page["events"].as_array().unwrap().iter();
    events
        .map(|event| (text(&event["kind"]), text(&event["detail"]["reason"])))
        .collect()
}

/// Kind and reason of its end, once it has been told.
fn end(server: &Server, id: &str) -> (String, String) {
    eventually("the event of its end", || {
        let told = told(server, id);
        let is_end = |kind: &str| matches!(kind, "killed" | "expired" | "crashed");
        told.into_iter().find(|(kind, _)| is_end(kind))
    })
}

/// The monitor of a sandbox, as the host numbers it.
pub(crate) fn monitor_of(server: &Server, id: &str) -> Pid {
    let lease = server.home.leases().into_iter();
    let mut lease = lease.filter(|lease| lease["sandbox"] == id);
    let pid = lease.next().unwrap()["owner"]["pid"].as_i64().unwrap();
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[test]
fn the_end_of_a_guest_or_a_monitor_is_told_once_and_leaves_nothing() {
    let server = Server::start(second_home());
    let kept = server.create_id(json!({}));
    let guest = server.create_id(json!({}));
    let monitor = server.create_id(json!({}));
    kill_process(Pid::from_raw(init_of(&guest)).unwrap(), Signal::KILL).unwrap();
    kill_process(monitor_of(&server, &monitor), Signal::KILL).unwrap();
    for id in [&guest, &monitor] {
        let (kind, reason) = end(&server, id);
        assert_eq!(kind, "crashed", "{reason}");
        assert!(!reason.is_empty());
        server.get(id).is_error(404);
        assert_eq!(told(&server, id).len(), 2, "its beginning and its end");
    }
    let (_, reason) = end(&server, &monitor);
    assert!(reason.contains("monitor"), "{reason}");
    eventually("their removal", || {
        (server.leased() == [kept.as_str()]).then_some(())
    });
    assert_eq!(server.health(&kept).status, 204);
}

#[test]
fn what_ends_while_there_is_no_server_is_told_by_the_next_one() {
    let mut server = Server::start(second_home());
    let guest = server.create_id(json!({}));
    let expired = server.create_id(json!({}));
    let target = format!("/sandboxes/{expired}/timeout");
    server
        .ask("POST", &target, Some(json!({"timeout": 2})))
        .expect(204);
    server.crash();
    kill_process(Pid::from_raw(init_of(&guest)).unwrap(), Signal::KILL).unwrap();
    eventually("both ends", || server.leased().is_empty().then_some(()));
    server.start_again();
    assert_eq!(end(&server, &guest).0, "crashed");
    assert_eq!(end(&server, &expired).0, "expired");
    for id in [&guest, &expired] {
        assert_eq!(told(&server, id).len(), 2, "no adoption of what was gone");
    }
}

/// A small file system, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=96m,mode=0700", "none"])
            .arg(path)
            .status();
        assert!(mounted.unwrap().success());
        Self(path.to_owned())
    }

    /// Takes all of its space.
    fn fill(&self) {
        let mut file = File::create(self.balloon()).unwrap();
        for chunk in [1 << 20, 4096, 512] {
            while file.write_all(&vec![1; chunk]).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.balloon()).unwrap();
    }

    fn balloon(&self) -> PathBuf {
        self.0.join("balloon")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.unwrap().success() || std::thread::panicking());
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

/// Gives the space back at the end, however that comes.
struct Emptied<'a>(&'a Small);

impl Drop for Emptied<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0.balloon()); // it may be gone
    }
}

#[test]
fn a_full_disk_costs_no_sandbox_and_leaves_nothing_half() {
    let home = second_home();
    let links: Vec<(PathBuf, PathBuf)> = ["templates", "layers", "blobs"]
        .iter()
        .map(|part| {
            let link = home.path().join(part);
            (fs::read_link(&link).unwrap(), link)
        })
        .collect();
    // Dropped last.
    let disk = Small::mount(home.path());
    for (target, link) in links {
        std::os::unix::fs::symlink(target, link).unwrap();
    }
    let server = Server::start(home);
    // Dropped first, so that a failure can be cleaned up after.
    let _emptied = Emptied(&disk);
    let id = server.create_id(json!({}));
    let pausing = server.create_id(json!({"timeout": 300, "autoPause": true}));
    let before = told(&server, &id);
    disk.fill();

    let body = json!({"templateID": "base", "timeout": 300});
    let refused = server.ask("POST", "/v2/sandboxes", Some(body.clone()));
    assert!(refused.status >= 500, "{refused:#?}");
    let post = |id: &str, what: &str, body: Value| {
        server.ask("POST", &format!("/sandboxes/{id}/{what}"), Some(body))
    };
    let refused = post(&id, "pause", json!({}));
    assert!(refused.status >= 500, "{refused:#?}");
    let refused = post(&id, "snapshots", json!({}));
    assert!(refused.status >= 400, "{refused:#?}");
    // Everybody who was there is there, and runs.
    assert_eq!(server.health(&id).status, 204);
    assert_eq!(server.get(&id).expect(200)["state"], "running");
    let mut all = [id.clone(), pausing.clone()];
    all.sort();
    eventually("what was half made is gone", || {
        (server.leased() == all).then_some(())
    });
    assert_eq!(told(&server, &id), before, "nothing happened to it");

    // With room again, everything works.
    disk.empty();
    let made = server.ask("POST", "/v2/sandboxes", Some(body)).expect(201);
    let made = made["sandboxID"].as_str().unwrap();
    post(&id, "pause", json!({})).expect(204);
    assert_eq!(server.get(&id).expect(200)["state"], "paused");
    let kinds = |id: &str| -> Vec<String> {
        let told = told(&server, id).into_iter();
        told.map(|(kind, _)| kind).collect()
    };
    assert_eq!(kinds(&id), ["created", "paused"]);
    assert_eq!(kinds(made), ["created"]);

    // What is to be paused at its end is not ended because that cannot be written.
    post(&pausing, "timeout", json!({"timeout": 1})).expect(204);
    disk.fill();
    std::thread::sleep(std::time::Duration::from_secs(2)); // its time passes
    assert_eq!(server.health(&pausing).status, 204);
    // Who kills makes room.
    server.kill(made).expect(204);
    disk.empty();
    eventually("the pause", || {
        (kinds(&pausing) == ["created", "paused"]).then_some(())
    });
    assert_eq!(server.get(&pausing).expect(200)["state"], "paused");
    assert_eq!(kinds(made), ["created", "killed"]);
}

#[test]
fn sandboxes_outlive_the_program_that_made_them() {
    let home = second_home();
    let program = home.work().join("atoll");
    fs::copy(binary(), &program).unwrap();
    let start = |home: &crate::harness::TestHome| {
        let serve = home
            .atoll(["serve", "--listen", "127.0.0.1:0", "--json"])
            .instead(&program);
        let mut running = serve.start();
        let line = running.wait_for("\n");
        let announced: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        (running, announced)
    };
    let (serving, _) = start(&home);
    let create = || home.run(["create", "--timeout", "5m"]).succeeded();
    let first = create();
    // An upgrade: another file under the same name, while everything runs.
    let fresh = home.work().join("atoll.new");
    fs::copy(binary(), &fresh).unwrap();
    fs::rename(&fresh, &program).unwrap();
    let second = create();
    for id in [&first, &second] {
        let printed = home.run(["exec", id.trim(), "--", "echo", "works"]);
        assert_eq!(printed.succeeded(), "works\n");
    }
    serving.signal(Signal::TERM);
    assert_eq!(serving.finish().code, 0);
    let (serving, _) = start(&home);
    for id in [&first, &second] {
        let printed = home.run(["exec", id.trim(), "--", "echo", "works"]);
        assert_eq!(printed.succeeded(), "works\n");
        let told = home
            .run(["events", "--sandbox", id.trim(), "--json"])
            .succeeded();
        let kinds: Vec<Value> = told
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone())
            .collect();
        assert_eq!(kinds, ["created", "adopted"]);
    }
    let stopped = home.run(["stop", "--kill"]);
    assert_eq!(stopped.code, 0, "{stopped:#?}");
    assert_eq!(serving.finish().code, 0);
}
