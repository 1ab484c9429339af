//! Sessions: found again, bounded, shared, recovered and ended.

use std::thread;

use atoll_server::control_plane::ErrorCode;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::serve_api::{ask_as_agent, fails, text};
use crate::harness::server::Server;
use crate::harness::{eventually, init_of, second_home};

pub(crate) fn session(server: &Server, body: Value) -> Value {
    server
        .ask("POST", "/api/v1/sessions", Some(body))
        .expect(201)
}

pub(crate) fn id(session: &Value) -> &str {
    text(session, "session_id")
}

pub(crate) fn run(server: &Server, session: &str, body: Value) -> Value {
    let target = format!("/api/v1/sessions/{session}/execute");
    server.ask("POST", &target, Some(body)).expect(200)
}

#[test]
fn an_agent_has_one_session_per_task_and_only_so_many() {
    let server = Server::start(second_home());
    let wish = json!({"agent_id": "a", "task_id": "t", "user_id": "u", "metadata": {"k": "v"},
                      "environment": {"SECRET": "s3cr3t"}});
    // At once: one is made, and everybody gets it.
    let replies: Vec<_> = thread::scope(|scope| {
        let asks: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| server.ask("POST", "/api/v1/sessions", Some(wish.clone()))))
            .collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).collect()
    });
    let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 201], "{replies:#?}");
    let made = replies[0].json();
    assert!(
        replies
            .iter()
            .all(|reply| reply.json()["sandbox_id"] == made["sandbox_id"])
    );
    assert_eq!(server.leased().len(), 1);
    let said = run(&server, id(&made), json!({"command": "echo $SECRET"}));
    assert_eq!(
        (&said["stdout"], &said["session_id"]),
        (&json!("s3cr3t\n"), &made["session_id"])
    );
    let list = server.ask("GET", "/api/v1/sessions?agent_id=a&status=active", None);
    assert!(!list.body.contains("s3cr3t"));
    assert_eq!(list.expect(200)["sessions"].as_array().unwrap().len(), 1);

    // The limit is of an agent, and what ended does not count.
    let mut limited = Server::start_with(second_home(), &[]);
    limited.crash();
    std::fs::write(
        limited.home.path().join("config.toml"),
        "max_sessions = 2\n",
    )
    .unwrap();
    limited.start_again();
    let first = session(&limited, json!({"agent_id": "a"}));
    session(&limited, json!({"agent_id": "a"}));
    let third = limited.ask("POST", "/api/v1/sessions", Some(json!({"agent_id": "a"})));
    fails(&third, ErrorCode::QuotaExceeded);
    session(&limited, json!({"agent_id": "b"}));
    let place = format!("/api/v1/sessions/{}", id(&first));
    limited.ask("DELETE", &place, None).expect(204);
    session(&limited, json!({"agent_id": "a"}));
    fails(
        &limited.ask("DELETE", &place, None),
        ErrorCode::SessionEnded,
    );
    let ended = limited.ask("GET", &place, None).expect(200);
    assert_eq!(
        (&ended["status"], &ended["reason"]),
        (&json!("ended"), &json!("deleted"))
    );
    let late = limited.ask(
        "POST",
        &format!("{place}/execute"),
        Some(json!({"command": "true"})),
    );
    fails(&late, ErrorCode::SessionEnded);
}

#[test]
fn a_lost_sandbox_is_replaced_and_the_caller_is_told_what_was_lost() {
    let mut server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "a", "task_id": "t"}));
    let session = id(&made).to_owned();
    run(&server, &session, json!({"code": "x = 1"}));
    let kept = run(&server, &session, json!({"code": "x"}));
    assert!(
        kept["results"][0]["text"] == "1" && kept.get("recovered").is_none(),
        "{kept:#}"
    );

    // Ended behind the session's back.
    let first = text(&made, "sandbox_id").to_owned();
    server
        .ask("DELETE", &format!("/api/v1/sandboxes/{first}"), None)
        .expect(204);
    let next = run(&server, &session, json!({"command": "echo fine"}));
    assert_eq!(
        (&next["stdout"], &next["outcome"]),
        (&json!("fine\n"), &json!("COMPLETED"))
    );
    let recovered = &next["recovered"];
    assert_eq!(recovered["previous_sandbox_id"], *first);
    assert_eq!(
        recovered["lost"],
        json!(["variables", "files", "processes"])
    );
    assert!(!text(recovered, "reason").is_empty());
    let second = text(&next, "sandbox_id").to_owned();
    assert_ne!(second, first);
    assert!(
        run(&server, &session, json!({"command": "true"}))
            .get("recovered")
            .is_none()
    );

    // Who asks for the session itself is told too.
    server
        .ask("DELETE", &format!("/api/v1/sandboxes/{second}"), None)
        .expect(204);
    let same = json!({"agent_id": "a", "task_id": "t"});
    let found = server
        .ask("POST", "/api/v1/sessions", Some(same))
        .expect(200);
    assert_eq!(found["recovered"]["previous_sandbox_id"], *second);
    let second = text(&found, "sandbox_id").to_owned();

    // Its processes killed while code runs: told at once, and not run again.
    let target = format!("/api/v1/sessions/{session}/execute");
    let body = json!({"command": "echo ran >> /tmp/count; sleep 100", "mode": "async"});
    let begun = server.ask("POST", &target, Some(body)).expect(202);
    let place = format!("/api/v1/executions/{}", text(&begun, "execution_id"));
    let first_process = rustix::process::Pid::from_raw(init_of(&second)).unwrap();
    rustix::process::kill_process(first_process, Signal::KILL).unwrap();
    let ended = eventually("the end of what ran", || {
        let now = server.ask("GET", &place, None).expect(200);
        (now["status"] == "failed").then_some(now)
    });
    assert_eq!(ended["outcome"], "SANDBOX_UNAVAILABLE", "{ended:#}");
    let again = eventually("another sandbox", || {
        let reply = server.ask(
            "POST",
            &target,
            Some(json!({"command": "cat /tmp/count; echo ok"})),
        );
        (reply.status == 200)
            .then(|| reply.json())
            .filter(|ran| ran["outcome"] == "COMPLETED")
    });
    assert_eq!(again["stdout"], "ok\n");

    // A killed server loses no session.
    let sandbox = again["sandbox_id"].clone();
    run(
        &server,
        &session,
        json!({"command": "echo kept > /tmp/kept"}),
    );
    server.crash();
    server.start_again();
    let after = run(&server, &session, json!({"command": "cat /tmp/kept"}));
    assert_eq!(
        (&after["stdout"], &after["sandbox_id"]),
        (&json!("kept\n"), &sandbox)
    );
    let seen = server
        .ask("GET", &format!("/api/v1/sessions/{session}"), None)
        .expect(200);
    assert_eq!(
        (&seen["status"], &seen["sandboxes_used"]),
        (&json!("active"), &json!(4))
    );
}

#[test]
fn sessions_end_when_idle_expired_or_when_their_task_is_completed() {
    let server = Server::start(second_home());
    let idle = session(&server, json!({"agent_id": "a", "idle_timeout_s": 1}));
    let expired = session(&server, json!({"agent_id": "a", "lifetime_s": 1}));
    let tasked = session(&server, json!({"agent_id": "a", "task_id": "t"}));
    let other = session(&server, json!({"agent_id": "b", "task_id": "t"}));
    let loose = json!({"agent_id": "a", "task_id": "t"});
    let loose = server
        .ask("POST", "/api/v1/sandboxes", Some(loose))
        .expect(201);
    for (session, reason) in [(&idle, "idle"), (&expired, "expired")] {
        eventually(reason, || {
            let target = format!("/api/v1/sessions/{}", id(session));
            let now = server.ask("GET", &target, None).expect(200);
            (now["status"] == "ended").then(|| assert_eq!(now["reason"], reason))
        });
    }
    // An agent completes its own part of a task, the tenant all of it.
    let done = ask_as_agent(&server, "a", "POST", "/api/v1/tasks/t/complete", None).expect(200);
    assert_eq!(done["sessions"], json!([id(&tasked)]));
    let mut expected = vec![text(&tasked, "sandbox_id"), text(&loose, "sandbox_id")];
    expected.sort_unstable();
    assert_eq!(done["sandboxes"], json!(expected));
    assert_eq!(server.leased(), [text(&other, "sandbox_id")]);
    let rest = server
        .ask("POST", "/api/v1/tasks/t/complete", None)
        .expect(200);
    assert_eq!(rest["sessions"], json!([id(&other)]));
    let nothing = server
        .ask("POST", "/api/v1/tasks/t/complete", None)
        .expect(200);
    assert_eq!(
        nothing,
        json!({"task_id": "t", "sessions": [], "sandboxes": []})
    );
    assert_eq!(server.leased(), Vec::<String>::new());
}

#[test]
fn only_the_owner_and_who_holds_a_grant_use_a_session() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "owner", "task_id": "t"}));
    let place = format!("/api/v1/sessions/{}", id(&made));
    let execute = format!("{place}/execute");
    let body = json!({"command": "true"});
    let run_as = |agent: &str| ask_as_agent(&server, agent, "POST", &execute, Some(&body));
    run_as("owner").expect(200);
    fails(&run_as("guest"), ErrorCode::Forbidden);
    fails(
        &ask_as_agent(&server, "guest", "GET", &place, None),
        ErrorCode::Forbidden,
    );
    let grant = json!({"agent_id": "guest"});
    ask_as_agent(
        &server,
        "owner",
        "POST",
        &format!("{place}/grants"),
        Some(&grant),
    )
    .expect(204);
    run_as("guest").expect(200);
    fails(
        &ask_as_agent(&server, "guest", "DELETE", &place, None),
        ErrorCode::Forbidden,
    );
    let agents = server
        .ask("GET", &format!("{place}/grants"), None)
        .expect(200);
    assert_eq!(agents, json!({"agents": ["guest"]}));
    let revoke = format!("{place}/grants/guest");
    ask_as_agent(&server, "owner", "DELETE", &revoke, None).expect(204);
    fails(&run_as("guest"), ErrorCode::Forbidden);
    // To another tenant it is not there at all.
    let stranger = server.key_of("stranger");
    for (method, target) in [("GET", &place), ("POST", &execute), ("DELETE", &place)] {
        let sent = (method == "POST").then(|| body.clone());
        fails(
            &server.ask_as(&stranger, method, target, sent),
            ErrorCode::NotFound,
        );
    }
    let list = server
        .ask_as(&stranger, "GET", "/api/v1/sessions", None)
        .expect(200);
    assert_eq!(list["sessions"], json!([]));
}
