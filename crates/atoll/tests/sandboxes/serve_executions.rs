//! Executions: how they end, how they are followed, and what is kept of them.

use std::io::{BufRead as _, BufReader};

use atoll_server::control_plane::ErrorCode;
use serde_json::{Value, json};

use super::serve_api::{at, execute, fails, sandbox, text};
use crate::harness::server::{Ask, Server};
use crate::harness::{eventually, second_home};

/// Events of a stream until its end: `(id, name, data)`.
fn events(mut stream: impl std::io::Read, stop_at: Option<&str>) -> Vec<(u64, String, Value)> {
    let lines = BufReader::new(&mut stream).lines().map(Result::unwrap);
    let (mut found, mut id, mut name) = (Vec::new(), 0, String::new());
    for line in lines {
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().unwrap();
        } else if let Some(text) = line.strip_prefix("event: ") {
            name = text.to_owned();
        } else if let Some(text) = line.strip_prefix("data: ") {
            found.push((id, name.clone(), serde_json::from_str(text).unwrap()));
            if name == "end" || Some(name.as_str()) == stop_at {
                break;
            }
        }
    }
    found
}

fn open_events(server: &Server, target: &str, last: Option<u64>) -> std::net::TcpStream {
    let mut headers = vec![("x-api-key", server.key.clone())];
    headers.extend(last.map(|last| ("last-event-id", last.to_string())));
    let ask = Ask {
        method: "GET",
        target,
        headers,
        body: None,
    };
    server.open(&ask).unwrap()
}

#[test]
fn outcomes_say_what_happened() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({}));
    let ran = execute(&server, &id, json!({"code": "x = 20\nprint('hi')\nx + 1"}));
    assert_eq!(
        (
            &ran["status"],
            &ran["outcome"],
            &ran["stdout"],
            &ran["results"][0]["text"]
        ),
        (
            &json!("succeeded"),
            &json!("COMPLETED"),
            &json!("hi\n"),
            &json!("21")
        )
    );
    assert!(
        ran["cpu_usec"].is_u64() && ran["memory_peak_bytes"].as_u64() > Some(0),
        "{ran}"
    );
    let kept = execute(&server, &id, json!({"code": "x"}));
    assert_eq!(kept["results"][0]["text"], "20");
    for (body, outcome, status) in [
        (json!({"code": "1 / 0"}), "EXCEPTION", "failed"),
        (json!({"command": "exit 3"}), "NONZERO_EXIT", "failed"),
        (json!({"command": "kill -SEGV $$"}), "SIGNALED", "failed"),
        (
            json!({"command": "sleep 100", "timeout_ms": 300}),
            "TIMEOUT",
            "failed",
        ),
        // Also where it is over before anybody heard of it.
        (
            json!({"command": "sleep 100", "timeout_ms": 1}),
            "TIMEOUT",
            "failed",
        ),
        (
            json!({"code": "import time; time.sleep(100)", "timeout_ms": 300}),
            "TIMEOUT",
            "failed",
        ),
        (
            json!({"command": "yes", "output_bytes": 10000}),
            "OUTPUT_LIMIT",
            "failed",
        ),
        (
            json!({"code": "import os; os._exit(3)"}),
            "KERNEL_DIED",
            "failed",
        ),
    ] {
        let ran = execute(&server, &id, body.clone());
        assert_eq!(
            (&ran["outcome"], &ran["status"]),
            (&json!(outcome), &json!(status)),
            "{body} {ran:#}"
        );
        assert!(ran["message"].is_string(), "{ran:#}");
    }
    let exit = execute(
        &server,
        &id,
        json!({"command": "echo out; echo err >&2; exit 3"}),
    );
    assert_eq!(
        (
            &exit["exit_code"],
            &exit["stdout"],
            &exit["stderr"],
            &exit["language"]
        ),
        (&json!(3), &json!("out\n"), &json!("err\n"), &json!("bash"))
    );
    // What died took its variables, and said so; the next code runs.
    let history = server
        .ask("GET", "/api/v1/executions?status=failed", None)
        .expect(200);
    let died = history["executions"].as_array().unwrap().iter();
    let died: Vec<&Value> = died.filter(|one| one["outcome"] == "KERNEL_DIED").collect();
    assert_eq!(died[0]["state_lost"], json!(["variables"]));
    assert_eq!(
        execute(&server, &id, json!({"code": "1 + 1"}))["results"][0]["text"],
        "2"
    );
    // What cannot be started is the request's fault.
    for body in [
        json!({"command": "true", "cwd": "/nowhere"}),
        json!({"command": "true", "user": "nobody-here"}),
        json!({"code": "1", "context_id": "00000000-0000-0000-0000-000000000000"}),
        json!({"code": "1", "command": "true"}),
        json!({"code": ""}),
        json!({"command": "true", "timeout_ms": 0}),
        json!({"command": "true", "surprise": 1}),
        json!({}),
    ] {
        fails(
            &server.ask("POST", &at(&id, "execute"), Some(body)),
            ErrorCode::InvalidRequest,
        );
    }
}

#[test]
fn memory_that_runs_out_is_named() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({}));
    let ran = execute(
        &server,
        &id,
        json!({"command": "python3 -c \"b = bytearray(4 << 30)\nb[::4096] = b'x' * len(b[::4096])\" || exit 9"}),
    );
    assert_eq!(ran["outcome"], "MEMORY_LIMIT", "{ran:#}");
    // What an earlier one reached is not the next one's.
    assert_eq!(
        execute(&server, &id, json!({"command": "exit 9"}))["outcome"],
        "NONZERO_EXIT"
    );
}

#[test]
fn executions_are_polled_cancelled_and_kept() {
    let mut server = Server::start(second_home());
    let id = sandbox(&server, json!({}));
    let body = json!({"command": "echo begun; sleep 100", "mode": "async"});
    let begun = server.ask("POST", &at(&id, "execute"), Some(body));
    let place = begun.header("location").unwrap().to_owned();
    assert_eq!(begun.expect(202)["status"], "running");
    eventually("its first output", || {
        let now = server.ask("GET", &place, None).expect(200);
        (now["stdout"] == "begun\n").then_some(())
    });
    let cancelled = server
        .ask("POST", &format!("{place}/cancel"), None)
        .expect(200);
    assert_eq!(
        (&cancelled["status"], &cancelled["outcome"]),
        (&json!("cancelled"), &json!("CANCELLED"))
    );
    fails(
        &server.ask("POST", &format!("{place}/cancel"), None),
        ErrorCode::Conflict,
    );
    let left = execute(&server, &id, json!({"command": "pgrep -c sleep"}));
    assert_eq!(left["stdout"], "0\n", "what was started is ended too");

    // Who hangs up before a synchronous answer ends what it asked for.
    let body = json!({"command": "echo sync; sleep 100"})
        .to_string()
        .into_bytes();
    let target = at(&id, "execute");
    let ask = Ask {
        method: "POST",
        target: &target,
        headers: vec![("x-api-key", server.key.clone())],
        body: Some(body),
    };
    let stream = server.open_to_stay(&ask).unwrap();
    let newest = |server: &Server| {
        let list = server
            .ask("GET", "/api/v1/executions?limit=1", None)
            .expect(200);
        list["executions"][0].clone()
    };
    eventually("the second execution", || {
        (newest(&server)["status"] == "running").then_some(())
    });
    drop(stream);
    eventually("its end", || {
        (newest(&server)["status"] == "cancelled").then_some(())
    });

    // A server that is killed leaves what ran as interrupted.
    let body = json!({"command": "sleep 100", "mode": "async"});
    let lost = server
        .ask("POST", &at(&id, "execute"), Some(body))
        .expect(202);
    server.ask("GET", "/api/v1/executions", None).expect(200); // which writes it down
    server.crash();
    server.start_again();
    let target = format!("/api/v1/executions/{}", text(&lost, "execution_id"));
    let found = server.ask("GET", &target, None).expect(200);
    assert_eq!(
        (
            &found["status"],
            &found["outcome"],
            &found["sandbox_destroyed"]
        ),
        (
            &json!("interrupted"),
            &json!("SERVER_STOPPED"),
            &json!(false)
        )
    );
    let end = events(
        open_events(&server, &format!("{target}/events"), None),
        None,
    );
    assert_eq!((end.len(), end[0].1.as_str()), (1, "end"));
    server
        .ask("DELETE", &format!("/api/v1/sandboxes/{id}"), None)
        .expect(204);
    let found = server.ask("GET", &target, None).expect(200);
    assert_eq!(found["sandbox_destroyed"], true);
    assert!(found["sandbox_destroyed_at"].is_string());
    let usage = server.ask("GET", "/api/v1/usage", None).expect(200);
    assert!(
        usage["agents"][0]["executions"].as_u64() >= Some(4),
        "{usage}"
    );
}

#[test]
fn events_resume_where_a_reader_left_off_and_a_slow_one_is_told_what_it_missed() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({}));
    let body =
        json!({"command": "for n in 1 2 3; do echo $n; done; read -t 100 < /tmp/go; echo end"});
    execute(&server, &id, json!({"command": "mkfifo /tmp/go"}));
    let mut body = body;
    body["mode"] = json!("async");
    let begun = server
        .ask("POST", &at(&id, "execute"), Some(body))
        .expect(202);
    let target = format!("/api/v1/executions/{}/events", text(&begun, "execution_id"));
    let first = events(open_events(&server, &target, None), Some("stdout"));
    let (last, ..) = *first.last().unwrap();
    assert_eq!(first[0].1, "started");
    let rest = open_events(&server, &target, Some(last));
    execute(&server, &id, json!({"command": "echo > /tmp/go"}));
    let rest = events(rest, None);
    assert!(rest.iter().all(|(id, ..)| *id > last), "{rest:?}");
    let all: String = first
        .iter()
        .chain(&rest)
        .filter_map(|(_, _, data)| data["text"].as_str())
        .collect();
    assert_eq!(all, "1\n2\n3\nend\n");
    assert_eq!(rest.last().unwrap().2["outcome"], "COMPLETED");

    // Nobody reads for a while: the execution does not wait.
    let body = json!({"command": "head -c 4000000 /dev/zero | tr '\\0' x", "mode": "async"});
    let begun = server
        .ask("POST", &at(&id, "execute"), Some(body))
        .expect(202);
    let target = format!("/api/v1/executions/{}", text(&begun, "execution_id"));
    eventually("its end", || {
        let now = server.ask("GET", &target, None).expect(200);
        (now["status"] == "succeeded" && now["stdout_bytes"] == 4_000_000).then_some(())
    });
    let seen = events(
        open_events(&server, &format!("{target}/events"), Some(0)),
        None,
    );
    assert_eq!(
        (seen[0].1.as_str(), &seen[0].2["first_event_id"]),
        ("dropped", &json!(1))
    );
    assert_eq!(seen.last().unwrap().1, "end");
    let whole = server.ask("GET", &target, None).expect(200);
    let kept = whole["stdout"].as_str().unwrap().matches('x').count() as u64;
    assert_eq!(
        kept + whole["truncated"]["stdout_bytes"].as_u64().unwrap(),
        4_000_000
    );
}
