//! Limits that a sandbox or a session asks for: had, shown, kept, and refused
//! where nobody may have them.

use atoll_server::control_plane::ErrorCode;
use serde_json::{Value, json};

use super::serve_api::{at, execute, fails, sandbox, text};
use super::serve_sessions::{id, run, session};
use crate::harness::server::Server;
use crate::harness::{TestHome, eventually, second_home};

fn configured(text: &str) -> TestHome {
    let home = second_home();
    std::fs::write(home.path().join("config.toml"), text).unwrap();
    home
}

fn wanted() -> Value {
    json!({"memory_mib": 192, "cpu_millis": 500, "disk_mib": 256, "pids": 200,
           "inodes": 20_000, "open_files": 512, "shm_mib": 16})
}

/// What a sandbox says of itself: inodes, open files, and MiB of `/dev/shm`.
const LOOK: &str =
    "df --output=itotal / | tail -1; ulimit -n; df -m --output=size /dev/shm | tail -1";

#[test]
fn limits_are_those_that_were_asked_for_and_a_replacement_has_them_too() {
    let server = Server::start(second_home());
    let made = session(
        &server,
        json!({"agent_id": "a", "task_id": "t", "limits": wanted()}),
    );
    assert_eq!(made["limits"], wanted());
    let session = id(&made).to_owned();
    let place = format!("/api/v1/sessions/{session}");
    let look = |sandbox: &str| {
        let seen = server.ask("GET", &format!("/api/v1/sandboxes/{sandbox}"), None);
        assert_eq!(seen.expect(200)["limits"], wanted());
        let said = run(&server, &session, json!({"command": LOOK}));
        let said: Vec<u64> = text(&said, "stdout")
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        assert!((19_000..=21_000).contains(&said[0]), "{said:?}");
        assert_eq!(said[1..], [512, 16]);
        let usage = server.ask("GET", &at(sandbox, "usage"), None).expect(200);
        assert_eq!(usage["memory_limit_bytes"], json!(192 * 1024 * 1024));
    };
    let first = text(&made, "sandbox_id").to_owned();
    look(&first);
    let much = json!({"command": "python3 -c 'b = bytearray(400 << 20)'"});
    assert_eq!(run(&server, &session, much)["outcome"], "MEMORY_LIMIT");
    let full = json!({"command": "head -c 400M /dev/zero > /home/user/big"});
    assert_eq!(run(&server, &session, full)["outcome"], "DISK_FULL");

    server
        .ask("DELETE", &format!("/api/v1/sandboxes/{first}"), None)
        .expect(204);
    let next = run(&server, &session, json!({"command": "true"}));
    assert_eq!(next["recovered"]["previous_sandbox_id"], *first);
    let seen = server.ask("GET", &place, None).expect(200);
    assert_eq!(seen["limits"], wanted());
    assert_ne!(seen["sandbox_id"], *first);
    look(text(&seen, "sandbox_id"));

    // A fork is as its parent, whatever its template says.
    let fork = format!("/sandboxes/{}/fork", text(&seen, "sandbox_id"));
    let forks = server.ask("POST", &fork, Some(json!({}))).expect(201);
    let forked = text(&forks[0]["sandbox"], "sandboxID");
    let seen = server.ask("GET", &format!("/api/v1/sandboxes/{forked}"), None);
    assert_eq!(seen.expect(200)["limits"], wanted());

    // What is not named is as the template has it.
    let plain = session_limits(&server, &json!({"memory_mib": 300}));
    assert_eq!(plain["memory_mib"], 300);
    assert_eq!(plain["cpu_millis"], 2000);
}

fn session_limits(server: &Server, limits: &Value) -> Value {
    let id = sandbox(server, json!({"limits": limits}));
    let seen = server.ask("GET", &format!("/api/v1/sandboxes/{id}"), None);
    seen.expect(200)["limits"].clone()
}

#[test]
fn limits_that_nobody_may_have_are_refused_before_anything_is_made() {
    let server = Server::start(configured(
        "[max_limits]\nmemory_mib = 2048\ncpu_millis = 3000\ndisk_mib = 8192\n",
    ));
    let refused = |limits: Value, said: &str| {
        for (target, more) in [
            ("/api/v1/sandboxes", json!({"limits": limits.clone()})),
            (
                "/api/v1/sessions",
                json!({"agent_id": "a", "limits": limits.clone()}),
            ),
        ] {
            let problem = fails(
                &server.ask("POST", target, Some(more)),
                ErrorCode::InvalidRequest,
            );
            let message = problem.to_string();
            assert!(message.contains(said), "{said}: {message}");
        }
    };
    refused(json!({"memory_mib": 2049}), "outside 16..=2048");
    refused(json!({"cpu_millis": 3001}), "outside 10..=3000");
    refused(json!({"disk_mib": 9000}), "outside 16..=8192");
    refused(json!({"memory_mib": 1}), "outside 16..=");
    refused(json!({"cpu_millis": 0}), "outside 10..=");
    refused(json!({"pids": u64::MAX}), "pids");
    refused(json!({"inodes": 1}), "inodes");
    refused(json!({"open_files": 1}), "open files");
    refused(json!({"shm_mib": 0}), "shm");
    refused(json!({"memory_mib": -1}), "expected u64");
    refused(json!({"memory": 512}), "memory");
    refused(json!([512]), "expected a map");
    let sessions = server.ask("GET", "/api/v1/sessions?status=active", None);
    assert_eq!(sessions.expect(200)["sessions"], json!([]));
    assert!(server.leased().is_empty());
    let limits = session_limits(&server, &json!({"memory_mib": 2048, "cpu_millis": 3000}));
    assert_eq!(limits["memory_mib"], 2048);
}

#[test]
fn a_pool_gives_nobody_a_member_of_other_limits() {
    let server = Server::start(configured("[[pool]]\ntemplate = \"base\"\nsize = 1\n"));
    let pool = || server.ask("GET", "/pools", None).expect(200)[0].clone();
    eventually("a full pool", || (pool()["ready"] == 1).then_some(()));
    let member = server.leased()[0].clone();
    let made = sandbox(&server, json!({"limits": {"memory_mib": 256}}));
    assert_ne!(made, member);
    let said = execute(&server, &made, json!({"command": "echo own"}));
    assert_eq!(said["stdout"], "own\n");
    assert!(server.leased().contains(&member));
    // Limits that are the template's own are no others.
    let usual = json!({"limits": {"memory_mib": 1024, "cpu_millis": 2000}});
    assert_eq!(sandbox(&server, usual), member);
}

#[test]
fn limits_that_a_tier_cannot_keep_are_the_callers_mistake() {
    let server = Server::start_with(second_home(), &[("ATOLL_ISOLATION", "gvisor")]);
    let refused = |limits: Value, said: &str| {
        let wish = json!({"template": "base", "limits": limits});
        let answer = server.ask("POST", "/api/v1/sandboxes", Some(wish));
        let problem = fails(&answer, ErrorCode::InvalidRequest).to_string();
        assert!(problem.contains(said), "{said}: {problem}");
    };
    refused(
        json!({"inodes": 20_000}),
        "cannot limit the number of files",
    );
    refused(json!({"cpu_millis": 20}), "too few for the gvisor tier");
    assert!(server.leased().is_empty());
}
