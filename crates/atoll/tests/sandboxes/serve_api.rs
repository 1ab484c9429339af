//! `/api/v1` as agents use it: sandboxes, executions and their events, files,
//! processes, and who may do what.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

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

fn sandbox(server: &Server, more: Value) -> String {
    let made = server
        .ask("POST", "/api/v1/sandboxes", Some(more))
        .expect(201);
    assert_eq!(made["status"], "running");
    text(&made, "sandbox_id").to_owned()
}

/// Where something of a sandbox is.
fn at(id: &str, what: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{what}")
}

fn execute(server: &Server, id: &str, body: Value) -> Value {
    server
        .ask("POST", &at(id, "execute"), Some(body))
        .expect(200)
}

/// Events of a stream until its end: `(id, name, data)`.
fn events(mut stream: impl std::io::Read, stop_at: Option<&str>) -> Vec<(u64, String, Value)> {
    let mut lines = BufReader::new(&mut stream).lines().map(Result::unwrap);
    let (mut found, mut id, mut name) = (Vec::new(), 0, String::new());
    while let Some(line) = lines.next() {
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
    assert_eq!(listed("?agent_id=a"), [id.clone()]);
    assert_eq!(listed("?task_id=t"), [id.clone()]);
    assert_eq!(listed("?status=paused"), Vec::<String>::new());
    let first = server
        .ask("GET", "/api/v1/sandboxes?limit=1", None)
        .expect(200);
    let cursor = text(&first, "next_cursor");
    assert_eq!(listed(&format!("?limit=1&cursor={cursor}")), [id.clone()]);
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
    fails(
        &server.ask("GET", &at(&id, "files/stat"), None),
        ErrorCode::InvalidRequest,
    );

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
