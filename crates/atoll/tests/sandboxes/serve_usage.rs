//! Usage: metered by the host, summed up by agent, task and sandbox, and known
//! after restarts and ends.

use std::time::Duration;

use atoll_server::control_plane::ErrorCode;
use serde_json::{Value, json};

use super::serve_api::{ask_as_agent, execute, fails, sandbox};
use crate::harness::server::Server;
use crate::harness::{eventually, second_home};

fn metered(server: &Server, query: &str) -> Vec<Value> {
    let usage = server.ask("GET", &format!("/api/v1/usage?{query}"), None);
    usage.expect(200)["metered"].as_array().unwrap().clone()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name]
        .as_f64()
        .unwrap_or_else(|| panic!("no '{name}' in {value:#}"))
}

const BUSY: &str = "python3 -c 'import time
end = time.process_time() + 0.5
while time.process_time() < end: pass'";

#[test]
fn what_sandboxes_use_is_metered_by_agent_task_and_sandbox() {
    let mut server = Server::start(second_home());
    let one = sandbox(&server, json!({"agent_id": "a", "task_id": "t"}));
    let other = sandbox(&server, json!({"agent_id": "b", "task_id": "t"}));
    let nobodys = sandbox(&server, json!({}));
    execute(&server, &one, json!({"command": BUSY}));
    execute(
        &server,
        &one,
        json!({"command": "head -c 20M /dev/urandom > big; sync"}),
    );
    let send = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x' * 1000, ('192.0.2.1', 9))";
    execute(
        &server,
        &one,
        json!({"command": format!("python3 -c \"{send}\"")}),
    );
    // Its last seconds count, however few there were.
    for id in [&one, &other, &nobodys] {
        let place = format!("/api/v1/sandboxes/{id}");
        server.ask("DELETE", &place, None).expect(204);
    }
    let agents = metered(&server, "by=agent");
    let names: Vec<&Value> = agents.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, [&Value::Null, &json!("a"), &json!("b")]);
    let busy = &agents[1];
    assert!(number(busy, "cpu_usec") > 450_000.0, "{busy:#}");
    assert!(number(busy, "running_ms") > 500.0, "{busy:#}");
    assert!(number(busy, "memory_mib_s") > 0.5, "{busy:#}");
    assert!(number(busy, "disk_mib_s") > 0.0, "{busy:#}");
    assert!(number(busy, "egress_bytes") > 1_000.0, "{busy:#}");
    assert!(number(&agents[2], "cpu_usec") < 450_000.0, "{agents:#?}");
    let tasks = metered(&server, "by=task&task_id=t");
    assert_eq!(
        (&tasks[0]["name"], &tasks[0]["sandboxes"]),
        (&json!("t"), &json!(2))
    );
    let of_one = metered(&server, &format!("by=sandbox&sandbox_id={one}"));
    assert_eq!(of_one.len(), 1);
    assert_eq!(of_one[0]["cpu_usec"], busy["cpu_usec"]);

    // By pages, in a time, and for who may see it.
    let page = server
        .ask("GET", "/api/v1/usage?by=sandbox&limit=2", None)
        .expect(200);
    assert_eq!(page["metered"].as_array().unwrap().len(), 2);
    let next = page["next_cursor"].as_str().unwrap();
    let rest = metered(&server, &format!("by=sandbox&limit=2&cursor={next}"));
    assert_eq!(rest.len(), 1);
    // One by one too, where the first has no name.
    let (mut names, mut cursor) = (Vec::new(), String::new());
    while names.len() < 4 {
        let target = format!("/api/v1/usage?by=agent&limit=1{cursor}");
        let page = server.ask("GET", &target, None).expect(200);
        names.push(page["metered"][0]["name"].clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, [Value::Null, json!("a"), json!("b")]);
    fails(
        &server.ask("GET", "/api/v1/usage?cursor=x", None),
        ErrorCode::InvalidRequest,
    );
    assert_eq!(
        metered(&server, "to=2020-01-01T00:00:00Z"),
        [] as [Value; 0]
    );
    assert_eq!(metered(&server, "from=2020-01-01T00:00:00Z").len(), 3);
    let own = ask_as_agent(&server, "a", "GET", "/api/v1/usage?by=sandbox", None);
    assert_eq!(own.expect(200)["metered"][0]["name"], *one);
    let foreign = ask_as_agent(&server, "a", "GET", "/api/v1/usage?agent_id=b", None);
    fails(&foreign, ErrorCode::Forbidden);
    let stranger = server.key_of("stranger");
    let nothing = server.ask_as(&stranger, "GET", "/api/v1/usage?by=sandbox", None);
    assert_eq!(nothing.expect(200)["metered"], json!([]));
    fails(
        &server.ask("GET", "/api/v1/usage?by=x", None),
        ErrorCode::InvalidRequest,
    );

    server.crash();
    server.start_again();
    assert_eq!(metered(&server, "by=agent"), agents);
}

#[test]
fn what_is_used_while_there_is_no_server_is_metered_by_the_next() {
    let mut server = Server::start(second_home());
    let id = sandbox(&server, json!({"agent_id": "a"}));
    let long = json!({"command": format!("sleep 7; {BUSY}; sleep 600"), "timeout_ms": 900_000});
    let started = server.ask(
        "POST",
        &format!("/api/v1/sandboxes/{id}/processes"),
        Some(long),
    );
    started.expect(201);
    let before = eventually("sums of a first reading", || {
        let sums = metered(&server, "by=sandbox");
        sums.first().cloned()
    });
    assert!(number(&before, "cpu_usec") < 450_000.0, "{before:#}");
    server.crash();
    // What it does meanwhile nobody is told; only time passes.
    std::thread::sleep(Duration::from_secs(4));
    server.start_again();
    let after = eventually("a reading of the next server", || {
        let sums = metered(&server, "by=sandbox");
        (sums.len() == 1 && number(&sums[0], "cpu_usec") > 450_000.0).then(|| sums[0].clone())
    });
    assert!(
        number(&after, "running_ms") >= 3_000.0,
        "{before:#?} {after:#}"
    );
}

#[test]
fn time_in_which_it_was_paused_is_not_time_that_it_ran() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({"agent_id": "a"}));
    let pause = format!("/sandboxes/{id}/pause");
    server.ask("POST", &pause, Some(json!({}))).expect(204);
    // None where it was paused before its first reading.
    let before = metered(&server, "by=sandbox");
    let ran = before
        .first()
        .map_or(0.0, |sums| number(sums, "running_ms"));
    // Nothing is waited for: time passes.
    std::thread::sleep(Duration::from_secs(2));
    let place = format!("/api/v1/sandboxes/{id}");
    server.ask("DELETE", &place, None).expect(204);
    let after = &metered(&server, "by=sandbox")[0];
    assert_eq!(number(after, "running_ms"), ran, "{after:#}");
    assert!(number(after, "disk_mib_s") > 0.0, "{after:#}");
}
