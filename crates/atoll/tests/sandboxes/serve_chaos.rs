//! Sessions under which sandboxes, kernels, guests and the server are killed
//! again and again: every call is answered in time, says what happened, and
//! the next one works.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::serve_api::{at, text};
use super::serve_recovery::monitor_of;
use super::serve_sessions::{id, session};
use crate::harness::server::{Reply, Server};
use crate::harness::{eventually, init_of, second_home};

/// What no answer takes: a new sandbox, and attempts before that.
const ANSWER_BOUND: Duration = Duration::from_secs(30);

fn ask(server: &Server, session: &str, body: &Value) -> Reply {
    let begun = Instant::now();
    let target = format!("/api/v1/sessions/{session}/execute");
    let reply = server.ask("POST", &target, Some(body.clone()));
    let took = begun.elapsed();
    assert!(took < ANSWER_BOUND, "{took:?}: {reply:#?}");
    reply
}

/// Kills something of a sandbox.
type Blow = fn(&Server, &str);

fn kill(pid: Pid) {
    // What has ended already is what was wanted.
    let _ = kill_process(pid, Signal::KILL);
}

const BLOWS: [(&str, Blow, &[&str]); 4] = [
    (
        "sandbox",
        |server, sandbox| {
            let reply = server.ask("DELETE", &format!("/api/v1/sandboxes/{sandbox}"), None);
            reply.expect(204);
        },
        &["SANDBOX_UNAVAILABLE"],
    ),
    (
        "guest",
        |_, sandbox| kill(Pid::from_raw(init_of(sandbox)).unwrap()),
        &["SANDBOX_UNAVAILABLE"],
    ),
    (
        "monitor",
        |server, sandbox| kill(monitor_of(server, sandbox)),
        &["SANDBOX_UNAVAILABLE"],
    ),
    (
        "kernel",
        |server, sandbox| {
            let line = json!({"command": "pkill -KILL -f '[i]pykernel|[a]toll.*kernel|[p]ython3.*kernel' || true", "user": "root"});
            server
                .ask("POST", &at(sandbox, "execute"), Some(line))
                .expect(200);
        },
        &["KERNEL_DIED", "SANDBOX_UNAVAILABLE", "EXCEPTION"],
    ),
];

#[test]
fn whatever_is_killed_under_a_session_the_call_says_so_and_the_next_one_works() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a"}));
    let session = id(&made).to_owned();
    for (name, blow, outcomes) in BLOWS {
        let first = ask(&server, &session, &json!({"code": "import time; x = 1"})).expect(200);
        let sandbox = text(&first, "sandbox_id").to_owned();
        let long = json!({"code": "print('begun', flush=True); time.sleep(600)", "mode": "async"});
        let begun = ask(&server, &session, &long).expect(202);
        let place = format!("/api/v1/executions/{}", text(&begun, "execution_id"));
        let look = || server.ask("GET", &place, None).expect(200);
        eventually("its first word", || {
            (look()["stdout"] == "begun\n").then_some(())
        });
        blow(&server, &sandbox);
        let ended = eventually("its end", || {
            Some(look()).filter(|now| now["status"] != "running")
        });
        let outcome = text(&ended, "outcome");
        assert!(outcomes.contains(&outcome), "{name}: {ended:#}");
        assert!(!text(&ended, "message").is_empty(), "{name}: {ended:#}");

        // Not sooner or later: the very next call.
        let next = ask(&server, &session, &json!({"code": "'x' in globals()"})).expect(200);
        assert_eq!(next["outcome"], "COMPLETED", "{name}: {next:#}");
        assert_eq!(next["results"][0]["text"], "False", "{name}: {next:#}");
        if name != "kernel" {
            assert_eq!(
                next["recovered"]["previous_sandbox_id"], *sandbox,
                "{name}: {next:#}"
            );
            assert_ne!(next["sandbox_id"], *sandbox);
        }
    }
}

#[test]
fn what_is_asked_at_the_moment_of_a_kill_runs_once_or_not_at_all() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a"}));
    let session = id(&made).to_owned();
    let mut sandbox = text(&made, "sandbox_id").to_owned();
    for round in 0..12 {
        // Before, with and after the call.
        let delay = Duration::from_millis(round * 2);
        let guest = Pid::from_raw(init_of(&sandbox)).unwrap();
        let reply = thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(delay);
                kill(guest);
            });
            ask(
                &server,
                &session,
                &json!({"command": "echo $RANDOM; sleep 0.2"}),
            )
        });
        match reply.status {
            200 => {
                let ran = reply.json();
                let outcome = text(&ran, "outcome");
                assert!(
                    ["COMPLETED", "SANDBOX_UNAVAILABLE"].contains(&outcome),
                    "{ran:#}"
                );
                // What was tried again is told, and had reached nobody.
                for attempt in ran["attempts"].as_array().unwrap() {
                    assert!(!text(attempt, "message").is_empty(), "{ran:#}");
                }
            }
            503 => assert_eq!(reply.json()["code"], "SANDBOX_UNAVAILABLE"),
            _ => panic!("{reply:#?}"),
        }
        let next = ask(&server, &session, &json!({"command": "echo next"})).expect(200);
        assert_eq!(
            (&next["outcome"], &next["stdout"]),
            (&json!("COMPLETED"), &json!("next\n")),
            "{next:#}"
        );
        next["sandbox_id"]
            .as_str()
            .unwrap()
            .clone_into(&mut sandbox);
    }
    let list = server.ask("GET", "/api/v1/sandboxes", None).expect(200);
    let left: BTreeSet<&str> = list["sandboxes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| text(one, "sandbox_id"))
        .collect();
    assert!(left.len() <= 1, "{left:?}");
}

#[test]
fn a_server_that_is_killed_under_sessions_leaves_each_of_them_usable() {
    let mut server = Server::start(second_home());
    let sessions: Vec<String> = (0..4)
        .map(|number| {
            let made = session(
                &server,
                json!({"agent_id": "a", "task_id": number.to_string()}),
            );
            id(&made).to_owned()
        })
        .collect();
    let mut begun = Vec::new();
    for session in &sessions {
        ask(
            &server,
            session,
            &json!({"command": "echo kept > /tmp/kept"}),
        )
        .expect(200);
        let long = json!({"command": "sleep 600", "mode": "async"});
        let running = ask(&server, session, &long).expect(202);
        begun.push(text(&running, "execution_id").to_owned());
    }
    server.crash();
    // One ends while there is no server.
    let gone = server.leased()[0].clone();
    kill(Pid::from_raw(init_of(&gone)).unwrap());
    server.start_again();
    let mut recovered = 0;
    for (session, execution) in sessions.iter().zip(&begun) {
        let place = format!("/api/v1/executions/{execution}");
        let was = server.ask("GET", &place, None).expect(200);
        assert_eq!(
            (&was["status"], &was["outcome"]),
            (&json!("interrupted"), &json!("SERVER_STOPPED"))
        );
        let next = ask(&server, session, &json!({"command": "cat /tmp/kept"})).expect(200);
        match next.get("recovered") {
            None => assert_eq!(next["stdout"], "kept\n", "{next:#}"),
            Some(told) => {
                assert_eq!(told["previous_sandbox_id"], *gone, "{next:#}");
                recovered += 1;
            }
        }
    }
    assert_eq!(recovered, 1);
}

#[test]
fn what_was_lost_is_told_until_somebody_has_heard_it() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a"}));
    let session = id(&made).to_owned();
    let first = text(&made, "sandbox_id").to_owned();
    server
        .ask("DELETE", &format!("/api/v1/sandboxes/{first}"), None)
        .expect(204);
    // Has another sandbox, and fails before anything runs.
    let wrong = json!({"command": "true", "user": "nobody-of-that-name"});
    assert_eq!(ask(&server, &session, &wrong).status, 400);
    let next = ask(&server, &session, &json!({"command": "true"})).expect(200);
    assert_eq!(next["recovered"]["previous_sandbox_id"], *first, "{next:#}");
    let after = ask(&server, &session, &json!({"command": "true"})).expect(200);
    assert!(after.get("recovered").is_none(), "{after:#}");
}
