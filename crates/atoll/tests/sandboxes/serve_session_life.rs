//! What sessions live through: long executions, restarts of the server, pauses,
//! forks, and others who end them at the same moment.

use std::thread;

use atoll_engine::Tier;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::serve_api::{at, execute, text};
use super::serve_recovery::monitor_of;
use super::serve_sessions::{id, run, session};
use crate::harness::server::Server;
use crate::harness::{eventually, second_home, tier};

fn look(server: &Server, session: &str) -> Value {
    let target = format!("/api/v1/sessions/{session}");
    server.ask("GET", &target, None).expect(200)
}

/// Waits until sessions have been looked at, however long they were idle.
fn wait_for_a_sweep(server: &Server) {
    let idle = session(server, json!({"agent_id": "sweep", "idle_timeout_s": 1}));
    eventually("the end of an idle session", || {
        (look(server, id(&idle))["status"] == "ended").then_some(())
    });
}

#[test]
fn what_runs_is_a_use_of_its_session() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a", "idle_timeout_s": 1}));
    let (session, sandbox) = (id(&made), text(&made, "sandbox_id"));
    let target = format!("/api/v1/sessions/{session}/execute");
    let body =
        json!({"command": "mkfifo /tmp/go; read -t 100 < /tmp/go; echo done", "mode": "async"});
    let begun = server.ask("POST", &target, Some(body)).expect(202);
    // The second time whatever the first one did is over.
    wait_for_a_sweep(&server);
    wait_for_a_sweep(&server);
    assert_eq!(look(&server, session)["status"], "active");
    execute(&server, sandbox, json!({"command": "echo > /tmp/go"}));
    let place = format!("/api/v1/executions/{}", text(&begun, "execution_id"));
    let ended = eventually("its end", || {
        let now = server.ask("GET", &place, None).expect(200);
        (now["status"] != "running").then_some(now)
    });
    assert_eq!(
        (&ended["outcome"], &ended["stdout"]),
        (&json!("COMPLETED"), &json!("done\n"))
    );
    // A process in the background is none: it may never end.
    let body = json!({"command": "sleep 1000"});
    server
        .ask("POST", &at(sandbox, "processes"), Some(body))
        .expect(201);
    eventually("the end of the session", || {
        (look(&server, session)["reason"] == "idle").then_some(())
    });
}

#[test]
fn a_start_of_the_server_takes_no_time_from_a_session() {
    const IDLE_MS: i64 = 10_000;
    let mut server = Server::start(second_home());
    let made = session(
        &server,
        json!({"agent_id": "a", "idle_timeout_s": IDLE_MS / 1000}),
    );
    let session = id(&made).to_owned();
    let begun = std::time::Instant::now();
    eventually("most of its time", || {
        (begun.elapsed().as_millis() > 8000).then_some(())
    });
    run(
        &server,
        &session,
        json!({"command": "echo kept > /tmp/kept"}),
    );
    server.crash();
    server.start_again();
    wait_for_a_sweep(&server);
    assert!(begun.elapsed().as_millis() > IDLE_MS.unsigned_abs().into());
    let after = run(&server, &session, json!({"command": "cat /tmp/kept"}));
    assert_eq!(after["stdout"], "kept\n");
}

#[test]
fn a_sandbox_that_is_being_woken_up_is_not_given_up() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a"}));
    let (session, sandbox) = (id(&made), text(&made, "sandbox_id"));
    run(
        &server,
        session,
        json!({"command": "echo kept > /tmp/kept"}),
    );
    server
        .ask("POST", &format!("/sandboxes/{sandbox}/pause"), None)
        .expect(204);
    let monitor = monitor_of(&server, sandbox);
    kill_process(monitor, Signal::STOP).unwrap();
    let connect = format!("/v2/sandboxes/{sandbox}/connect");
    let (woken, ran) = thread::scope(|scope| {
        let body = json!({"timeout": 300});
        let waking = scope.spawn(|| server.ask("POST", &connect, Some(body)));
        let look = || server.ask("GET", &format!("/api/v1/sandboxes/{sandbox}"), None);
        eventually("that somebody wakes it up", || {
            (look().expect(200)["status"] == "running").then_some(())
        });
        let body = json!({"command": "cat /tmp/kept"});
        let running = scope.spawn(|| run(&server, session, body));
        // Whoever gives it up does so now.
        for _ in 0..100 {
            look().expect(200);
        }
        kill_process(monitor, Signal::CONT).unwrap();
        (waking.join().unwrap(), running.join().unwrap())
    });
    woken.expect(201);
    assert_eq!(
        (&ran["stdout"], &ran["sandbox_id"], ran.get("recovered")),
        (&json!("kept\n"), &json!(sandbox), None)
    );
    assert_eq!(server.leased(), [sandbox]);
}

#[test]
fn a_session_whose_sandbox_boots_again_says_what_was_lost() {
    if tier() == Tier::Gvisor {
        return; // which cannot keep files without memory
    }
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a"}));
    let (session, sandbox) = (id(&made), text(&made, "sandbox_id"));
    run(&server, session, json!({"code": "x = 1"}));
    run(
        &server,
        session,
        json!({"command": "echo kept > /tmp/kept"}),
    );
    let body = json!({"memory": false});
    server
        .ask("POST", &format!("/sandboxes/{sandbox}/pause"), Some(body))
        .expect(204);
    let after = run(&server, session, json!({"command": "cat /tmp/kept"}));
    assert_eq!(
        (&after["stdout"], &after["sandbox_id"]),
        (&json!("kept\n"), &json!(sandbox))
    );
    let recovered = &after["recovered"];
    assert_eq!(
        (&recovered["lost"], &recovered["previous_sandbox_id"]),
        (&json!(["variables", "processes"]), &json!(sandbox))
    );
    let next = run(&server, session, json!({"command": "true"}));
    assert_eq!(next.get("recovered"), None);
}

#[test]
fn a_fork_of_a_sessions_sandbox_is_of_no_session() {
    if tier() == Tier::Gvisor {
        return; // which has no forks
    }
    let mut server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a", "metadata": {"k": "v"}}));
    let sandbox = text(&made, "sandbox_id");
    let fork = format!("/sandboxes/{sandbox}/fork");
    let body = json!({"count": 1, "timeout": 300});
    let forked = server.ask("POST", &fork, Some(body)).expect(201);
    let fork = text(&forked[0]["sandbox"], "sandboxID").to_owned();
    server.crash();
    server.start_again();
    let target = format!("/api/v1/sandboxes/{fork}");
    let found = server.ask("GET", &target, None).expect(200);
    assert_eq!(
        (&found["status"], &found["metadata"]),
        (&json!("running"), &json!({"k": "v"}))
    );
}

#[test]
fn a_task_goes_on_in_another_session_as_soon_as_one_has_expired() {
    let server = Server::start(second_home());
    let wish = json!({"agent_id": "a", "task_id": "t", "lifetime_s": 1});
    let first = session(&server, wish.clone());
    let second = eventually("another session", || {
        // Never that it has ended.
        let reply = server.ask("POST", "/api/v1/sessions", Some(wish.clone()));
        assert!(matches!(reply.status, 200 | 201), "{reply:#?}");
        let found = reply.json();
        (found["session_id"] != first["session_id"]).then_some(found)
    });
    assert_ne!(second["sandbox_id"], first["sandbox_id"]);
    let ended = look(&server, id(&first));
    assert_eq!(ended["reason"], "expired");
}

#[test]
fn a_task_is_completed_however_many_say_so() {
    let server = Server::start(second_home());
    let made: Vec<Value> = ["a", "b", "c"]
        .iter()
        .map(|agent| session(&server, json!({"agent_id": agent, "task_id": "t"})))
        .collect();
    let replies: Vec<_> = thread::scope(|scope| {
        let one = format!("/api/v1/sessions/{}", id(&made[0]));
        let ends = scope.spawn({
            let server = &server;
            move || server.ask("DELETE", &one, None)
        });
        let asks: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| server.ask("POST", "/api/v1/tasks/t/complete", None)))
            .collect();
        ends.join().unwrap();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect()
    });
    for reply in &replies {
        reply.expect(200);
        assert_eq!(server.leased(), Vec::<String>::new());
    }
}

#[test]
fn a_session_that_cannot_be_made_leaves_room_for_the_next() {
    let server = Server::start(second_home());
    let missing = json!({"agent_id": "a", "task_id": "t", "template": "nowhere",
                         "environment": {"SECRET": "s3cr3t"}});
    let replies: Vec<_> = thread::scope(|scope| {
        let asks: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| server.ask("POST", "/api/v1/sessions", Some(missing.clone()))))
            .collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect()
    });
    for reply in replies {
        assert_eq!(reply.status, 404, "{reply:#?}");
    }
    session(&server, json!({"agent_id": "a", "task_id": "t"}));
}
