//! `/api/v1` as agents use it: sandboxes, files, processes, and who may do what.

use std::io::{Read as _, Write as _};

use atoll_server::control_plane::ErrorCode;
use serde_json::{Value, json};

use crate::harness::server::{Ask, Reply, Server};
use crate::harness::{eventually, second_home};

/// Fails unless it is this error of the catalogue.
pub(crate) fn fails(reply: &Reply, code: ErrorCode) -> Value {
    reply.is_error(code.status());
    let body = reply.json();
    assert_eq!(body["code"], code.as_str(), "{reply:#?}");
    assert_eq!(body["remediation"], code.remediation());
    let header = reply.header("x-request-id");
    assert_eq!(header, body["request_id"].as_str());
    body
}

pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name]
        .as_str()
        .unwrap_or_else(|| panic!("no '{name}' in {value:#}"))
}

/// Asks in the name of an agent.
pub(crate) fn ask_as_agent(
    server: &Server,
    agent: &str,
    method: &str,
    target: &str,
    body: Option<&Value>,
) -> Reply {
    let headers = vec![
        ("x-api-key", server.key.clone()),
        ("atoll-agent-id", agent.to_owned()),
    ];
    let ask = Ask {
        method,
        target,
        headers,
        body: body.map(|body| body.to_string().into_bytes()),
    };
    server.send(&ask).unwrap()
}

pub(crate) fn sandbox(server: &Server, more: Value) -> String {
    let made = server
        .ask("POST", "/api/v1/sandboxes", Some(more))
        .expect(201);
    assert_eq!(made["status"], "running");
    text(&made, "sandbox_id").to_owned()
}

/// Where something of a sandbox is.
pub(crate) fn at(id: &str, what: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{what}")
}

pub(crate) fn execute(server: &Server, id: &str, body: Value) -> Value {
    server
        .ask("POST", &at(id, "execute"), Some(body))
        .expect(200)
}

#[test]
fn a_sandbox_is_made_looked_at_listed_and_ended() {
    let server = Server::start(second_home());
    let id = sandbox(
        &server,
        json!({"agent_id": "a", "task_id": "t", "metadata": {"k": "v"}, "environment": {"E": "1"}}),
    );
    let place = format!("/api/v1/sandboxes/{id}");
    let seen = server.ask("GET", &place, None).expect(200);
    assert_eq!(
        (
            &seen["agent_id"],
            &seen["task_id"],
            &seen["metadata"],
            &seen["reason"]
        ),
        (&json!("a"), &json!("t"), &json!({"k": "v"}), &Value::Null)
    );
    let ran = execute(&server, &id, json!({"command": "echo $E"}));
    assert_eq!(
        (&ran["stdout"], &ran["agent_id"]),
        (&json!("1\n"), &Value::Null)
    );
    let other = sandbox(&server, json!({"agent_id": "b"}));
    let listed = |query: &str| -> Vec<String> {
        let list = server
            .ask("GET", &format!("/api/v1/sandboxes{query}"), None)
            .expect(200);
        let all = list["sandboxes"].as_array().unwrap().iter();
        all.map(|one| text(one, "sandbox_id").to_owned()).collect()
    };
    assert_eq!(listed("?agent_id=a"), [id.as_str()]);
    assert_eq!(listed("?task_id=t"), [id.as_str()]);
    assert_eq!(listed("?status=paused"), Vec::<String>::new());
    let first = server
        .ask("GET", "/api/v1/sandboxes?limit=1", None)
        .expect(200);
    let cursor = text(&first, "next_cursor");
    assert_eq!(listed(&format!("?limit=1&cursor={cursor}")), [id.as_str()]);
    let usage = server.ask("GET", &at(&id, "usage"), None).expect(200);
    assert!(usage["cpu_usec"].as_u64().unwrap() > 0, "{usage}");

    server.ask("DELETE", &place, None).expect(204);
    fails(&server.ask("DELETE", &place, None), ErrorCode::NotFound);
    fails(
        &server.ask("POST", &at(&id, "execute"), Some(json!({"command": "x"}))),
        ErrorCode::NotFound,
    );
    let ended = server.ask("GET", &place, None).expect(200);
    assert_eq!(ended["status"], "stopped");
    assert!(
        ended["reason"].is_string() && ended["destroyed_at"].is_string(),
        "{ended}"
    );
    assert_eq!(listed("?status=stopped"), [id]);
    assert_eq!(listed(""), [other]);
}

#[test]
fn files_and_processes_are_reached() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({}));
    let file = json!({"path": "/tmp/d/a.txt", "content": "hello"});
    let written = server
        .ask("PUT", &at(&id, "files/content"), Some(file))
        .expect(200);
    assert_eq!(
        (&written["size"], &written["kind"]),
        (&json!(5), &json!("file"))
    );
    let read = server
        .ask("GET", &at(&id, "files/content?path=/tmp/d/a.txt"), None)
        .expect(200);
    assert_eq!(
        (&read["content"], &read["encoding"]),
        (&json!("hello"), &json!("utf8"))
    );
    let list = server
        .ask("GET", &at(&id, "files?path=/tmp/d"), None)
        .expect(200);
    assert_eq!(list["files"][0]["name"], "a.txt");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    let target = at(&id, "upload?path=/tmp/d/b");
    let ask = Ask {
        method: "POST",
        target: &target,
        headers: vec![("x-api-key", server.key.clone())],
        body: Some(bytes.clone()),
    };
    assert_eq!(server.send(&ask).unwrap().expect(201)["size"], 3_000_000);
    let target = at(&id, "download?path=/tmp/d/b");
    let ask = Ask {
        method: "GET",
        target: &target,
        body: None,
        ..ask
    };
    let mut got = Vec::new();
    server.open(&ask).unwrap().read_to_end(&mut got).unwrap();
    let holds = |needle: &[u8]| got.windows(needle.len()).any(|part| part == needle);
    assert!(
        got.len() >= bytes.len() && holds(&bytes[..4096]),
        "{} bytes",
        got.len()
    );
    server
        .ask("DELETE", &at(&id, "files?path=/tmp/d/b"), None)
        .expect(204);
    for (method, what) in [
        ("GET", "files/stat?path=/tmp/d/b"),
        ("GET", "download?path=/tmp/d/b"),
        ("GET", "files?path=/nowhere"),
        ("DELETE", "files?path=/tmp/d/b"),
    ] {
        fails(
            &server.ask(method, &at(&id, what), None),
            ErrorCode::NotFound,
        );
    }
    for what in [
        "files/stat",
        "files/stat?path=/tmp/d&user=nobody-here",
        "files/content?path=/tmp/d/a.txt&user=nobody-here",
        "download?path=/tmp/d/a.txt&user=nobody-here",
    ] {
        fails(
            &server.ask("GET", &at(&id, what), None),
            ErrorCode::InvalidRequest,
        );
    }

    let body = json!({"command": "while read line; do echo got $line; done; echo over"});
    let process = server
        .ask("POST", &at(&id, "processes"), Some(body))
        .expect(201);
    let process = format!("processes/{}", text(&process, "execution_id"));
    let input = json!({"data": "one\n"});
    server
        .ask("POST", &at(&id, &format!("{process}/input")), Some(input))
        .expect(204);
    let output = |after: u64| {
        let target = at(&id, &format!("{process}/output?after={after}"));
        server.ask("GET", &target, None).expect(200)
    };
    let next = eventually("its answer", || {
        let said = output(0);
        let is_there = said["output"][0]["text"] == "got one\n";
        is_there.then(|| said["next"].as_u64().unwrap())
    });
    let close = json!({"data": "two", "close": true});
    server
        .ask("POST", &at(&id, &format!("{process}/input")), Some(close))
        .expect(204);
    let rest = eventually("its end", || {
        let said = output(next);
        (said["ended"] == true).then_some(said)
    });
    let rest: String = rest["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| text(one, "text"))
        .collect();
    assert_eq!(rest, "over\n");
    let late = Some(json!({"data": "x"}));
    fails(
        &server.ask("POST", &at(&id, &format!("{process}/input")), late),
        ErrorCode::Conflict,
    );
    let body = json!({"command": "sleep 100"});
    let second = server
        .ask("POST", &at(&id, "processes"), Some(body))
        .expect(201);
    let listed = server.ask("GET", &at(&id, "processes"), None).expect(200);
    assert_eq!(listed["processes"].as_array().unwrap().len(), 2);
    let second = at(&id, &format!("processes/{}", text(&second, "execution_id")));
    server.ask("DELETE", &second, None).expect(204);
    assert_eq!(
        server.ask("GET", &second, None).expect(200)["status"],
        "cancelled"
    );
    let wrong = json!({"manager": "pip", "packages": ["--index-url=http://example.org"]});
    fails(
        &server.ask("POST", &at(&id, "packages"), Some(wrong)),
        ErrorCode::InvalidRequest,
    );
}

#[test]
fn mistakes_have_one_form_and_agents_are_kept_apart() {
    let server = Server::start(second_home());
    let id = sandbox(&server, json!({"agent_id": "owner"}));
    let key = server.key.clone();
    let send = |method: &str, target: &str, body: &[u8]| {
        let headers = vec![("x-api-key", key.clone())];
        let body = Some(body.to_vec());
        server
            .send(&Ask {
                method,
                target,
                headers,
                body,
            })
            .unwrap()
    };
    for body in [
        &b"{"[..],
        b"null",
        b"[]",
        b"\xff\xfe",
        b"{\"timeout_s\":-1}",
        b"{\"template\":5}",
    ] {
        fails(
            &send("POST", "/api/v1/sandboxes", body),
            ErrorCode::InvalidRequest,
        );
        fails(
            &send("POST", "/api/v1/sessions", body),
            ErrorCode::InvalidRequest,
        );
    }
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    fails(
        &send("POST", "/api/v1/sandboxes", &deep),
        ErrorCode::InvalidRequest,
    );
    let long = vec![b' '; 4 * 1024 * 1024 + 1];
    fails(
        &send("POST", "/api/v1/sandboxes", &long),
        ErrorCode::PayloadTooLarge,
    );
    server.ask("GET", "/api/v1/nope", None).is_error(404);
    server.ask("PUT", "/api/v1/sandboxes", None).is_error(405);
    fails(
        &server.ask(
            "POST",
            "/api/v1/sandboxes",
            Some(json!({"template": "missing-one"})),
        ),
        ErrorCode::NotFound,
    );
    for query in ["limit=0", "status=x", "cursor=%27", "limit=1&limit=1"] {
        let target = format!("/api/v1/executions?{query}");
        fails(&server.ask("GET", &target, None), ErrorCode::InvalidRequest);
    }
    // Only the operator's own key sees all tenants.
    fails(
        &server.ask("GET", "/api/v1/admin/sandboxes", None),
        ErrorCode::Forbidden,
    );
    let local = std::fs::read_to_string(server.home.path().join("local_key")).unwrap();
    let all = server
        .ask_as(&local, "GET", "/api/v1/admin/sandboxes", None)
        .expect(200);
    assert_eq!(all["sandboxes"][0]["sandbox_id"], *id);
    assert!(all["sandboxes"][0]["tenant_id"].is_string());

    let run = json!({"command": "true"});
    let run_as =
        |agent: &str| ask_as_agent(&server, agent, "POST", &at(&id, "execute"), Some(&run));
    run_as("owner").expect(200);
    fails(&run_as("stranger"), ErrorCode::Forbidden);
    let grant = json!({"agent_id": "stranger"});
    let grants = at(&id, "grants");
    fails(
        &ask_as_agent(&server, "stranger", "POST", &grants, Some(&grant)),
        ErrorCode::Forbidden,
    );
    ask_as_agent(&server, "owner", "POST", &grants, Some(&grant)).expect(204);
    let ran = run_as("stranger").expect(200);
    assert_eq!(ran["agent_id"], "stranger");
    // Who was let in lets nobody in.
    fails(
        &ask_as_agent(&server, "stranger", "POST", &grants, Some(&grant)),
        ErrorCode::Forbidden,
    );
    ask_as_agent(
        &server,
        "owner",
        "DELETE",
        &format!("{grants}/stranger"),
        None,
    )
    .expect(204);
    fails(&run_as("stranger"), ErrorCode::Forbidden);
    fails(
        &ask_as_agent(
            &server,
            "stranger",
            "GET",
            "/api/v1/executions?agent_id=owner",
            None,
        ),
        ErrorCode::Forbidden,
    );
    let both = json!({"agent_id": "other"});
    fails(
        &ask_as_agent(&server, "owner", "POST", "/api/v1/sandboxes", Some(&both)),
        ErrorCode::Forbidden,
    );
    fails(
        &ask_as_agent(&server, &"a".repeat(129), "GET", "/api/v1/sandboxes", None),
        ErrorCode::InvalidRequest,
    );
}

#[test]
fn the_document_and_the_page_need_nothing_from_elsewhere() {
    let server = Server::start(second_home());
    let ask = |target: &str| {
        let headers = Vec::new();
        server
            .send(&Ask {
                method: "GET",
                target,
                headers,
                body: None,
            })
            .unwrap()
    };
    let document = ask("/api/v1/openapi.json").expect(200);
    assert_eq!(document["openapi"], "3.1.0");
    let errors = &document["components"]["schemas"]["Error"]["required"];
    for field in ["code", "message", "remediation", "request_id"] {
        assert!(
            errors.as_array().unwrap().contains(&json!(field)),
            "{errors}"
        );
    }
    for target in [
        "/api/v1/docs",
        "/api/v1/docs/page.js",
        "/api/v1/docs/page.css",
    ] {
        let reply = ask(target);
        assert_eq!(reply.status, 200);
        let policy = reply.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(
            !reply.body.contains("http://") && !reply.body.contains("https://"),
            "{target}"
        );
    }
    // A client that hangs in the middle of its body holds nobody up.
    let mut slow = std::net::TcpStream::connect(server.address()).unwrap();
    let head = format!(
        "POST /api/v1/sandboxes HTTP/1.1\r\nhost: test\r\nx-api-key: {}\r\ncontent-length: 10\r\n\r\n{{",
        server.key
    );
    slow.write_all(head.as_bytes()).unwrap();
    server.ask("GET", "/api/v1/sandboxes", None).expect(200);
}
