//! Servers come and go; sandboxes stay, with everything that was said of them.

use std::fs;
use std::time::Duration;

use atoll_engine::{
    Attachment, Limits, MonitoredRuntime, Runtime as _, SandboxError, SandboxRecord,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::sandboxes::{LIFETIME, Sandboxes};
use crate::harness::server::Server;
use crate::harness::{eventually, init_of, second_home, tier};

fn ended(server: &Server, id: &str) -> Value {
    let path = server.path().join("sandboxes").join(format!("{id}.json"));
    eventually("its end is recorded", || {
        let record: SandboxRecord = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        Some(serde_json::to_value(record.ended?.outcome).unwrap())
    })
}

#[test]
fn sandboxes_survive_every_end_of_their_server_with_names_tokens_and_time() {
    let mut server = Server::start(second_home());
    let made = server.create(json!({"metadata": {"a": "b"}}));
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    let before = server.get(&id).expect(200);
    let init = init_of(&id);
    for signal in [Signal::TERM, Signal::KILL, Signal::INT] {
        server.signal(signal);
        let ended = server.ended();
        let expected = if signal == Signal::KILL { -9 } else { 0 };
        assert_eq!(ended.code, expected, "{ended:#?}");
        assert_eq!(server.leased(), [id.as_str()], "{signal:?}");
        let has_endpoint = server.path().join("endpoint.json").exists();
        assert_eq!(has_endpoint, signal == Signal::KILL);
        server.start_again();
        assert_eq!(server.get(&id).expect(200), before, "{signal:?}");
        assert_eq!(server.listed(""), [id.as_str()]);
        assert_eq!(init_of(&id), init);
    }
    // It still obeys.
    let target = format!("/sandboxes/{id}/timeout");
    server
        .ask("POST", &target, Some(json!({"timeout": 900})))
        .expect(204);
    server.kill(&id).expect(204);
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn time_passes_without_a_server() {
    let mut server = Server::start(second_home());
    let id = server.create_id(json!({"timeout": 300}));
    let other = server.create_id(json!({"timeout": 300}));
    let target = format!("/sandboxes/{id}/timeout");
    server
        .ask("POST", &target, Some(json!({"timeout": 2})))
        .expect(204);
    server.crash();
    assert_eq!(ended(&server, &id)["kind"], "lifetime_ended");
    eventually("its removal", || {
        (server.leased() == [other.as_str()]).then_some(())
    });
    server.start_again();
    server.get(&id).is_error(404);
    assert_eq!(server.listed(""), [other]);
    let logs = server
        .ask("GET", &format!("/sandboxes/{id}/logs"), None)
        .expect(200);
    let last = logs["logEntries"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone();
    let message = last["message"].as_str().unwrap();
    assert!(
        message.starts_with("sandbox ended: end of the lifetime"),
        "{message}"
    );
}

#[test]
fn what_ended_meanwhile_is_buried_and_what_nobody_knows_is_ended() {
    let mut server = Server::start(second_home());
    let id = server.create_id(json!({}));
    let kept = server.create_id(json!({}));
    server.crash();
    kill_process(Pid::from_raw(init_of(&id)).unwrap(), Signal::KILL).unwrap();
    assert_eq!(ended(&server, &id)["kind"], "crashed");
    server.start_again();
    server.get(&id).is_error(404);
    assert_eq!(server.listed(""), [kept]);
}

#[test]
fn a_sandbox_that_dies_under_a_server_is_noticed_at_once() {
    let server = Server::start(second_home());
    let id = server.create_id(json!({}));
    kill_process(Pid::from_raw(init_of(&id)).unwrap(), Signal::KILL).unwrap();
    eventually("the server notices", || {
        (server.get(&id).status == 404).then_some(())
    });
    // Nobody reaches it before that is written.
    eventually("lists without it", || {
        server.listed("").is_empty().then_some(())
    });
    eventually("its removal", || server.leased().is_empty().then_some(()));
}

#[test]
fn strays_are_ended_and_sandboxes_of_commands_are_not() {
    let made = Sandboxes::new();
    let limits = Limits {
        disk_mib: 64,
        ..Limits::default()
    };
    let runtime = MonitoredRuntime::new(made.config.clone(), tier());
    let stray = runtime
        .create(&made.spec(Attachment::Detached, LIFETIME, limits.clone()))
        .unwrap();
    let bound = runtime
        .create(&made.spec(Attachment::Client, LIFETIME, limits))
        .unwrap();
    let server = Server::start(made.home);
    assert!(matches!(stray.destroy(), Err(SandboxError::Gone)));
    assert_eq!(bound.wait(Duration::from_millis(1)).unwrap(), None);
    assert_eq!(server.leased(), [bound.id().to_string()]);
    assert_eq!(server.listed(""), Vec::<String>::new());
    bound.destroy().unwrap();
}

#[test]
fn stop_with_kill_ends_everything_with_and_without_a_server() {
    let mut server = Server::start(second_home());
    let id = server.create_id(json!({}));
    let stopped = server.run(["stop", "--kill"]);
    assert_eq!(stopped.code, 0, "{stopped:#?}");
    assert!(
        stopped.stderr.contains("sandboxes ended: 1"),
        "{stopped:#?}"
    );
    assert_eq!(server.ended().code, 0);
    assert_eq!(server.leased(), Vec::<String>::new());
    assert_eq!(ended(&server, &id)["kind"], "killed");
    server.start_again();
    server.get(&id).is_error(404);

    server.create_id(json!({}));
    server.crash();
    let stopped = server.run(["stop", "--kill"]);
    assert!(
        stopped.stderr.contains("sandboxes ended: 1"),
        "{stopped:#?}"
    );
    assert_eq!(server.leased(), Vec::<String>::new());
    server.start_again();
}
