//! Who sees what was run, and for how long.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;

use atoll_server::control_plane::ErrorCode;
use serde_json::{Value, json};

use super::serve_api::{ask_as_agent, at, execute, fails, sandbox, text};
use super::serve_sessions::{id, session};
use crate::harness::server::{Ask, Server};
use crate::harness::{eventually, second_home};

/// Something that says a line five times a second, for minutes.
const CHATTY: &str = "for n in $(seq 1000); do echo $n; sleep 0.2; done";

/// Reads a stream of events to its end; the names of the events.
fn rest(stream: TcpStream) -> Vec<String> {
    let lines = BufReader::new(stream).lines();
    // Broken off is ended too.
    let lines = lines.map_while(Result::ok);
    lines
        .filter_map(|line| line.strip_prefix("event: ").map(str::to_owned))
        .collect()
}

fn follow(server: &Server, key: &str, agent: Option<&str>, execution: &Value) -> TcpStream {
    let target = format!(
        "/api/v1/executions/{}/events",
        text(execution, "execution_id")
    );
    let mut headers = vec![("x-api-key", key.to_owned())];
    headers.extend(agent.map(|agent| ("atoll-agent-id", agent.to_owned())));
    let ask = Ask {
        method: "GET",
        target: &target,
        headers,
        body: None,
    };
    server.open(&ask).unwrap()
}

#[test]
fn a_stream_ends_with_its_key_however_much_there_is_to_read() {
    let server = Server::start(second_home());
    let made = server
        .home
        .run(["key", "create", "--name", "short", "--json"]);
    let made = made.json();
    let key = text(&made, "key");
    let id = sandbox(&server, json!({}));
    let body = json!({"command": CHATTY, "mode": "async"});
    let begun = server
        .ask("POST", &at(&id, "execute"), Some(body))
        .expect(202);
    let stream = follow(&server, key, None, &begun);
    let revoked = server.home.run(["key", "revoke", text(&made, "id")]);
    assert_eq!(revoked.code, 0, "{revoked:#?}");
    let seen = rest(stream);
    assert!(!seen.contains(&"end".to_owned()), "{seen:?}");
    let target = format!("/api/v1/executions/{}", text(&begun, "execution_id"));
    assert_eq!(
        server.ask("GET", &target, None).expect(200)["status"],
        "running"
    );
    // Nor do streams keep the server from its end.
    follow(&server, &server.key, None, &begun);
}

#[test]
fn a_file_on_its_way_breaks_off_with_its_key() {
    const BYTES: usize = 256 * 1024 * 1024;
    let server = Server::start(second_home());
    let made = server
        .home
        .run(["key", "create", "--name", "short", "--json"]);
    let made = made.json();
    let id = sandbox(&server, json!({}));
    execute(
        &server,
        &id,
        json!({"command": format!("truncate -s {BYTES} /tmp/long")}),
    );
    let target = at(&id, "download?path=/tmp/long");
    let ask = Ask {
        method: "GET",
        target: &target,
        headers: vec![("x-api-key", text(&made, "key").to_owned())],
        body: None,
    };
    let mut stream = server.open(&ask).unwrap();
    let mut first = [0; 4096];
    stream.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200 "), "{first:?}");
    // Nobody reads: it waits.
    let revoked = server.home.run(["key", "revoke", text(&made, "id")]);
    assert_eq!(revoked.code, 0, "{revoked:#?}");
    let refused = server.ask_as(text(&made, "key"), "GET", &target, None);
    fails(&refused, ErrorCode::Unauthorized);
    let mut rest = Vec::new();
    // A connection that breaks off may be an error or an end without the last chunk.
    let _ = stream.read_to_end(&mut rest);
    assert!(
        rest.len() < BYTES && !rest.ends_with(b"\r\n0\r\n\r\n"),
        "{}",
        rest.len()
    );
}

#[test]
fn who_is_shut_out_sees_no_more_of_what_runs_there() {
    let server = Server::start(second_home());
    let made = session(&server, json!({"agent_id": "owner"}));
    let place = format!("/api/v1/sessions/{}", id(&made));
    let grants = format!("{place}/grants");
    let grant = json!({"agent_id": "guest"});
    server.ask("POST", &grants, Some(grant)).expect(204);
    let execute = format!("{place}/execute");
    let body = json!({"command": CHATTY, "mode": "async"});
    let own = ask_as_agent(&server, "guest", "POST", &execute, Some(&body)).expect(202);
    let anonymous = server.ask("POST", &execute, Some(body)).expect(202);
    let streams = [&own, &anonymous].map(|one| follow(&server, &server.key, Some("guest"), one));
    let see = |agent: &str, execution: &Value| {
        let target = format!("/api/v1/executions/{}", text(execution, "execution_id"));
        ask_as_agent(&server, agent, "GET", &target, None)
    };
    for execution in [&own, &anonymous] {
        see("owner", execution).expect(200);
        see("guest", execution).expect(200);
        fails(&see("stranger", execution), ErrorCode::Forbidden);
    }
    server
        .ask("DELETE", &format!("{grants}/guest"), None)
        .expect(204);
    for execution in [&own, &anonymous] {
        fails(&see("guest", execution), ErrorCode::Forbidden);
    }
    for stream in streams {
        let seen = rest(stream);
        assert!(!seen.contains(&"end".to_owned()), "{seen:?}");
    }
    // The owner of the place ends what others run there; what was run is part of
    // the history of who ran it.
    let cancel = format!("/api/v1/executions/{}/cancel", text(&own, "execution_id"));
    ask_as_agent(&server, "owner", "POST", &cancel, None).expect(200);
    assert_eq!(see("guest", &own).expect(200)["status"], "cancelled");
}

#[test]
fn who_was_let_in_ends_nothing_and_few_are() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({"agent_id": "owner"}));
    let grants = at(&id, "grants");
    for number in 0..100 {
        let grant = json!({"agent_id": format!("guest-{number}")});
        server.ask("POST", &grants, Some(grant)).expect(204);
    }
    let again = json!({"agent_id": "guest-0"});
    server.ask("POST", &grants, Some(again)).expect(204);
    let one_more = json!({"agent_id": "guest-100"});
    fails(
        &server.ask("POST", &grants, Some(one_more)),
        ErrorCode::QuotaExceeded,
    );
    let place = format!("/api/v1/sandboxes/{id}");
    fails(
        &ask_as_agent(&server, "guest-0", "DELETE", &place, None),
        ErrorCode::Forbidden,
    );
    ask_as_agent(&server, "owner", "DELETE", &place, None).expect(204);
}

#[test]
fn a_list_of_processes_is_short_and_numbers_are_those_of_events() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({}));
    let body = json!({"command": "head -c 1000000 /dev/zero | tr '\\0' '\\1'; echo; sleep 100"});
    let process = server
        .ask("POST", &at(&id, "processes"), Some(body))
        .expect(201);
    let process = text(&process, "execution_id");
    let list = eventually("all of its output", || {
        let list = server.ask("GET", &at(&id, "processes"), None);
        let said = list.expect(200)["processes"][0]["stdout_bytes"].clone();
        (said == 1_000_001).then_some(list)
    });
    assert!(list.body.len() < 64 * 1024, "{} bytes", list.body.len());
    let short = &list.json()["processes"][0];
    assert!(short["truncated"]["stdout_bytes"].as_u64() > Some(990_000));
    let whole = at(&id, &format!("processes/{process}"));
    let whole = server.ask("GET", &whole, None).expect(200);
    assert_eq!(whole["truncated"]["stdout_bytes"], 0);

    let events = format!("/api/v1/executions/{process}/events?last_event_id=");
    let output = at(&id, &format!("processes/{process}/output?after="));
    for target in [events, output] {
        for number in ["1000000", "18446744073709551615"] {
            let reply = server.ask("GET", &format!("{target}{number}"), None);
            fails(&reply, ErrorCode::InvalidRequest);
        }
    }
}
