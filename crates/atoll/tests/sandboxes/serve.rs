//! `atoll serve` and the life of its sandboxes, over plain HTTP.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness;
use crate::harness::server::{Ask, Reply, Server};
use crate::harness::{eventually, home_for_builds, second_home};

fn server() -> Server {
    Server::start(second_home())
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Milliseconds since 1970 of a moment that the server wrote.
fn moment(value: &Value) -> i64 {
    let moment: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
    moment.as_millisecond()
}

/// How a sandbox ended, as the engine wrote it down.
fn ending(server: &Server, id: &str) -> Value {
    let record = server.path().join("sandboxes").join(format!("{id}.json"));
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    record["ended"]["outcome"].clone()
}

#[test]
fn the_first_start_says_everything_and_a_clean_stop_takes_it_back() {
    let home = second_home();
    let mut serving = home.atoll(["serve", "--listen", "127.0.0.1:0"]).start();
    let said = serving.wait_for("E2B_SANDBOX_URL");
    let line = |start: &str| {
        let found = said.lines().find_map(|line| line.strip_prefix(start));
        found
            .unwrap_or_else(|| panic!("no `{start}` in {said}"))
            .to_owned()
    };
    let url = line("serving on ");
    let key = line("export E2B_API_KEY=");
    let key = key.split(' ').next().unwrap();
    assert_eq!(line("export E2B_API_URL="), url);
    assert_eq!(line("export E2B_SANDBOX_URL="), url);
    assert!(line("isolation: ").starts_with(&harness::tier().to_string()));
    assert_eq!(key.len(), 44, "{key}");

    let path = home.path().join("endpoint.json");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let endpoint: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(endpoint["url"], *url);

    let refused = home.run(["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, 125);
    assert!(
        refused.stderr.contains("another server runs on"),
        "{refused:#?}"
    );
    assert!(
        refused.stderr.contains("hint: stop that server first"),
        "{refused:#?}"
    );

    serving.signal(Signal::TERM);
    assert_eq!(serving.finish().code, 0);
    assert!(!path.exists());

    // The key is not shown again.
    let mut again = home.atoll(["serve", "--listen", "127.0.0.1:0"]).start();
    let said = again.wait_for("E2B_SANDBOX_URL");
    assert!(!said.contains("e2b_"), "{said}");
    let stopped = home.run(["stop"]);
    assert_eq!(
        (stopped.code, stopped.stderr.as_str()),
        (0, "the server is stopped\n")
    );
    assert_eq!(again.finish().code, 0);
    let stopped = home.run(["stop"]);
    assert!(
        stopped.stderr.starts_with("no server runs on"),
        "{stopped:#?}"
    );
}

#[test]
fn an_address_that_is_taken_is_an_error_with_advice() {
    let home = second_home();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = home.run(["serve", "--listen", &address]);
    assert_eq!(refused.code, 125);
    assert!(
        refused.stderr.contains("hint: choose another address"),
        "{refused:#?}"
    );
    assert!(!home.path().join("endpoint.json").exists());
}

#[test]
fn a_sandbox_is_made_seen_listed_and_killed() {
    let server = server();
    let made = server.create(json!({"metadata": {"a": "b"}, "timeout": 60}));
    let id = made["sandboxID"].as_str().unwrap();
    let token = made["envdAccessToken"].as_str().unwrap();
    let expected = json!({
        "templateID": made["templateID"],
        "sandboxID": id,
        "clientID": "6532622b",
        "alias": "base",
        "envdVersion": "0.6.13",
        "envdAccessToken": token,
        "trafficAccessToken": null,
        "domain": format!("localhost:{}", server.address().port()),
    });
    assert_eq!(made, expected);

    let detail = server.get(id).expect(200);
    let mut listed = json!({
        "templateID": made["templateID"],
        "alias": "base",
        "sandboxID": id,
        "clientID": "6532622b",
        "startedAt": detail["startedAt"],
        "endAt": detail["endAt"],
        "cpuCount": 2,
        "memoryMB": 1024,
        "diskSizeMB": 4096,
        "metadata": {"a": "b"},
        "state": "running",
        "envdVersion": "0.6.13",
    });
    let list = server.ask("GET", "/v2/sandboxes", None).expect(200);
    assert_eq!(list, json!([listed]));
    let list = server.ask("GET", "/sandboxes", None).expect(200);
    assert_eq!(list, json!([listed]));
    let more = json!({
        "envdAccessToken": token,
        "allowInternetAccess": null,
        "domain": format!("localhost:{}", server.address().port()),
        "lifecycle": {"autoResume": false, "onTimeout": "kill"},
    });
    listed
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    assert_eq!(detail, listed);
    assert_eq!(
        moment(&detail["endAt"]) - moment(&detail["startedAt"]),
        60_000
    );
    assert_eq!(server.leased(), [id]);
    // The older form of a name, and the id of the template in place of its name.
    assert_eq!(server.get(&format!("{id}-6532622b")).expect(200), detail);
    let template = made["templateID"].as_str().unwrap();
    let second = server.create_id(json!({"templateID": template}));

    let killed = server.kill(id);
    assert_eq!((killed.status, killed.body.as_str()), (204, ""));
    assert_eq!(server.leased(), [second.as_str()]);
    server.get(id).is_error(404);
    server.kill(id).is_error(404);
    assert_eq!(server.listed(""), [second]);
}

#[test]
fn a_built_in_template_that_was_never_built_is_told_with_the_command_that_builds_it() {
    let server = Server::start(home_for_builds());
    for name in ["code-interpreter-v1", "code-interpreter-v1-slim"] {
        let body = json!({"templateID": name});
        let refused = server
            .ask("POST", "/v2/sandboxes", Some(body))
            .is_error(404);
        let expected = format!(
            "template '{name}' is not built on this server yet; its operator builds it once, with `atoll template build {name}`"
        );
        assert_eq!(refused, expected);
    }
    let body = json!({"templateID": "stranger/code-interpreter-v1"});
    let refused = server
        .ask("POST", "/v2/sandboxes", Some(body))
        .is_error(404);
    assert_eq!(refused, "template 'stranger/code-interpreter-v1' not found");
    server.create_id(json!({}));
}

#[test]
fn templates_that_are_not_there_are_named() {
    let server = server();
    let ask = |template: &str| {
        let body = json!({"templateID": template});
        server.ask("POST", "/v2/sandboxes", Some(body))
    };
    assert_eq!(ask("nope").is_error(404), "template 'nope' not found");
    ask("base:v2").is_error(404);
    ask("stranger/base").is_error(404);
    ask("no such name").is_error(400);
    ask("").is_error(400);
    // The same template under all its names.
    for name in ["base", " BASE ", "base:default", "default/base"] {
        assert_eq!(ask(name).expect(201)["alias"], "base");
    }
    let known = server
        .ask("GET", "/templates/aliases/base", None)
        .expect(200);
    assert_eq!(known["public"], true);
    server
        .ask("GET", "/templates/aliases/nope", None)
        .is_error(404);
}

#[test]
fn each_generation_has_its_own_default_time() {
    let server = server();
    for (target, seconds) in [("/v2/sandboxes", 300), ("/sandboxes", 15)] {
        let made = server.ask("POST", target, Some(json!({"templateID": "base"})));
        let made = made.expect(201);
        let detail = server.get(made["sandboxID"].as_str().unwrap()).expect(200);
        let lives = moment(&detail["endAt"]) - moment(&detail["startedAt"]);
        assert_eq!(lives, seconds * 1000, "{target}");
    }
}

#[test]
fn a_sandbox_ends_when_its_time_is_over_and_not_before() {
    let server = server();
    let id = server.create_id(json!({"timeout": 1}));
    let end_ms = moment(&server.get(&id).expect(200)["endAt"]);
    let gone_ms = eventually("the end of its time", || {
        let reply = server.get(&id);
        let seen_ms = now_ms();
        (reply.status == 404).then_some(seen_ms)
    });
    assert!(gone_ms >= end_ms, "gone {} ms too early", end_ms - gone_ms);
    println!("gone {} ms after the end of its time", gone_ms - end_ms);
    eventually("its removal", || server.leased().is_empty().then_some(()));
    assert_eq!(ending(&server, &id)["kind"], "lifetime_ended");
}

#[test]
fn time_is_set_anew_extended_and_never_beyond_the_maximum() {
    let server = Server::start_with(second_home(), &[("ATOLL_MAX_LIFETIME", "1h")]);
    let id = server.create_id(json!({"timeout": 600}));
    let end = || moment(&server.get(&id).expect(200)["endAt"]);
    let post = |verb: &str, body: Value| {
        server.ask("POST", &format!("/sandboxes/{id}/{verb}"), Some(body))
    };
    let started = moment(&server.get(&id).expect(200)["startedAt"]);

    let before = now_ms();
    post("timeout", json!({"timeout": 100})).expect(204);
    assert!(
        (before + 100_000..=now_ms() + 100_000).contains(&end()),
        "shorter"
    );
    let short = end();
    post("refreshes", json!({"duration": 20})).expect(204);
    assert_eq!(end(), short, "a refresh never shortens");
    post("connect", json!({"timeout": 10})).expect(200);
    assert_eq!(end(), short, "a connection never shortens");
    let before = now_ms();
    post("connect", json!({"timeout": 500})).expect(200);
    assert!(
        (before + 500_000..=now_ms() + 500_000).contains(&end()),
        "longer"
    );
    post("timeout", json!({"timeout": 999_999_999})).expect(204);
    assert_eq!(end(), started + 3_600_000, "clamped");

    let target = "/v2/sandboxes";
    let message = server
        .ask(
            "POST",
            target,
            Some(json!({"templateID": "base", "timeout": 3601})),
        )
        .is_error(400);
    assert_eq!(message, "Timeout cannot be greater than 1 hours");
    for timeout in [0, -1] {
        let body = json!({"templateID": "base", "timeout": timeout});
        server.ask("POST", target, Some(body)).is_error(400);
    }
    post("timeout", json!({"timeout": -1})).is_error(400);
    post("timeout", json!({})).is_error(400);
    post("refreshes", json!({"duration": 3601})).is_error(400);
    post("connect", json!({})).is_error(400);
    post("connect", json!({"timeout": 3601})).is_error(400);
    server
        .ask("POST", &format!("/v2/sandboxes/{id}/connect"), None)
        .expect(200);
    post("resume", json!({"timeout": 15})).is_error(409);

    post("timeout", json!({"timeout": 0})).expect(204);
    eventually("its end", || (server.get(&id).status == 404).then_some(()));
}

#[test]
fn a_connection_gives_the_same_way_in_to_the_same_key_and_another_to_another() {
    let server = server();
    let made = server.create(json!({}));
    let id = made["sandboxID"].as_str().unwrap();
    let target = format!("/v2/sandboxes/{id}/connect");
    assert_eq!(
        server.ask("POST", &target, Some(json!({}))).expect(200),
        made
    );
    let colleague = server.key_of("default");
    let other = server
        .ask_as(&colleague, "POST", &target, Some(json!({})))
        .expect(200);
    assert_eq!(other["sandboxID"], made["sandboxID"]);
    assert_ne!(other["envdAccessToken"], made["envdAccessToken"]);
}

#[test]
fn lists_have_pages_an_order_and_filters() {
    let server = server();
    let ids: Vec<String> = ["one", "two", "three"]
        .iter()
        .map(|name| server.create_id(json!({"metadata": {"name": name, "a b": "c&d"}})))
        .collect();
    let reversed: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(server.listed(""), reversed);
    assert_eq!(server.listed("?order=asc"), ids);
    assert_eq!(server.listed("?state=running%2Cpaused"), reversed);
    assert_eq!(server.listed("?state=paused"), Vec::<String>::new());
    assert_eq!(server.listed("?template=base"), reversed);
    assert_eq!(server.listed("?template=nope"), Vec::<String>::new());
    assert_eq!(server.listed("?metadata=name%3Dtwo"), [ids[1].clone()]);
    assert_eq!(server.listed("?metadata=a%252520b%3Dc%252526d"), reversed);
    assert_eq!(
        server.listed("?metadata=a%252520b%3Dc%252526d%26name%3Dthree"),
        [ids[2].clone()]
    );
    assert_eq!(server.listed("?metadata=name%3Dtw"), Vec::<String>::new());
    let second = server.get(&ids[1]).expect(200);
    let from = second["startedAt"].as_str().unwrap();
    assert_eq!(
        server.listed(&format!("?startedAfter={from}")),
        reversed[..2]
    );

    for order in ["asc", "desc"] {
        let mut pages = Vec::new();
        let mut target = format!("/v2/sandboxes?limit=1&order={order}");
        loop {
            let page = server.ask("GET", &target, None);
            for one in page.expect(200).as_array().unwrap() {
                pages.push(one["sandboxID"].as_str().unwrap().to_owned());
            }
            let Some(next) = page.header("x-next-token") else {
                break;
            };
            target = format!("/v2/sandboxes?limit=1&order={order}&nextToken={next}");
        }
        let expected = if order == "asc" { &ids } else { &reversed };
        assert_eq!(&pages, expected, "{order}");
    }
    for query in [
        "limit=0",
        "limit=101",
        "limit=x",
        "order=up",
        "state=killing",
        "template=base:default",
        "startedAfter=yesterday",
        "nextToken=x",
        "nextToken=1.i.asc&order=desc",
        "limit=1&limit=2",
    ] {
        let target = format!("/v2/sandboxes?{query}");
        server.ask("GET", &target, None).is_error(400);
    }
}

fn create_with_key(server: &Server, key: &str, body: &Value) -> Reply {
    let headers = vec![
        ("x-api-key", server.key.clone()),
        ("idempotency-key", key.to_owned()),
    ];
    let ask = Ask {
        method: "POST",
        target: "/v2/sandboxes",
        headers,
        body: Some(body.to_string().into_bytes()),
    };
    server.send(&ask).unwrap()
}

#[test]
fn the_same_request_makes_one_sandbox_however_often_it_is_sent() {
    let server = server();
    let body = json!({"templateID": "base", "metadata": {"a": "b"}});
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..100)
            .map(|_| scope.spawn(|| create_with_key(&server, "k-1", &body)))
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let made: Vec<Value> = replies
        .iter()
        .filter(|reply| reply.status == 201)
        .map(Reply::json)
        .collect();
    assert!(!made.is_empty(), "{replies:#?}");
    assert!(made.iter().all(|one| *one == made[0]), "{made:#?}");
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.is_error(409);
        assert_eq!(reply.header("should-retry"), Some("true"));
    }
    assert_eq!(create_with_key(&server, "k-1", &body).expect(201), made[0]);
    let id = made[0]["sandboxID"].as_str().unwrap();
    assert_eq!(server.leased(), [id]);

    let other = json!({"templateID": "base", "metadata": {"a": "c"}});
    create_with_key(&server, "k-1", &other).is_error(422);
    create_with_key(&server, "Not A Key", &body).is_error(400);
    // Another tenant's key of the same text is another one.
    let stranger = server.key_of("stranger");
    let headers = vec![
        ("x-api-key", stranger),
        ("idempotency-key", "k-1".to_owned()),
    ];
    let ask = Ask {
        method: "POST",
        target: "/v2/sandboxes",
        headers,
        body: Some(body.to_string().into_bytes()),
    };
    assert_ne!(server.send(&ask).unwrap().expect(201)["sandboxID"], *id);

    server.kill(id).expect(204);
    let ended = create_with_key(&server, "k-1", &body);
    ended.is_error(409);
    assert_eq!(ended.header("should-retry"), Some("false"));
    // A request that failed may be repeated, also corrected.
    create_with_key(&server, "k-2", &json!({"templateID": "nope"})).is_error(404);
    create_with_key(&server, "k-2", &body).expect(201);
}

#[test]
fn a_tenant_has_no_more_sandboxes_than_it_may() {
    let server = Server::start_with(second_home(), &[("ATOLL_MAX_SANDBOXES", "2")]);
    let body = json!({"templateID": "base"});
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| server.ask("POST", "/v2/sandboxes", Some(body.clone()))))
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let made = replies.iter().filter(|reply| reply.status == 201).count();
    assert_eq!(made, 2, "{replies:#?}");
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.is_error(429);
    }
    let stranger = server.key_of("stranger");
    let theirs = server.ask_as(&stranger, "POST", "/v2/sandboxes", Some(body.clone()));
    theirs.expect(201);
    let ours = server.listed("");
    server.kill(&ours[0]).expect(204);
    let last = create_with_key(&server, "last", &body).expect(201);
    // Asking again for what is there takes no room.
    create_with_key(&server, "another", &body).is_error(429);
    let again = create_with_key(&server, "last", &body).expect(201);
    assert_eq!(again["sandboxID"], last["sandboxID"]);
}

#[test]
fn a_client_that_hangs_up_leaves_what_it_can_ask_for_again_and_nothing_else() {
    let home = home_for_builds();
    // One that takes its time, so that its creation is under way when the client goes.
    let records = home.path().join("templates");
    let record = fs::read(records.join("base.json")).unwrap();
    let mut slow: Value = serde_json::from_slice(&record).unwrap();
    slow["name"] = json!("slow");
    slow["ready_cmd"] = json!("sleep 3");
    fs::write(records.join("slow.json"), slow.to_string()).unwrap();
    let server = Server::start(home);
    let body = json!({"templateID": "slow"});
    let hang_up = |headers: Vec<(&str, String)>| {
        let ask = Ask {
            method: "POST",
            target: "/v2/sandboxes",
            headers,
            body: Some(body.to_string().into_bytes()),
        };
        let connection = server.open_to_stay(&ask).unwrap();
        let id = eventually("its creation", || server.leased().into_iter().next());
        drop(connection);
        id
    };
    let undone = hang_up(vec![("x-api-key", server.key.clone())]);
    eventually("the end of what nobody asks for", || {
        server.leased().is_empty().then_some(())
    });
    assert_eq!(ending(&server, &undone), json!({"kind": "killed"}));
    assert_eq!(server.listed(""), Vec::<String>::new());

    let kept = hang_up(vec![
        ("x-api-key", server.key.clone()),
        ("idempotency-key", "again".to_owned()),
    ]);
    let id = eventually("the sandbox", || server.listed("").into_iter().next());
    assert_eq!(id, kept);
    let again = create_with_key(&server, "again", &body);
    assert_eq!(again.expect(201)["sandboxID"], *id);
}

#[test]
fn what_a_sandbox_may_reach_is_what_was_asked_for() {
    let server = server();
    let policy = |id: &str| {
        let record = server.path().join("sandboxes").join(format!("{id}.json"));
        let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
        record["network"].clone()
    };
    let open = server.create_id(json!({}));
    assert_eq!(policy(&open), json!({"mode": "full"}));
    let closed = server.create_id(json!({
        "allow_internet_access": false,
        "network": {"allowOut": ["192.0.2.1"], "denyOut": ["198.51.100.0/24"]},
    }));
    let expected = json!({"mode": "full", "allow": ["192.0.2.1/32"], "deny": ["0.0.0.0/0"]});
    assert_eq!(policy(&closed), expected);
    let detail = server.get(&closed).expect(200);
    assert_eq!(detail["allowInternetAccess"], false);
    assert_eq!(detail["network"]["allowOut"], json!(["192.0.2.1"]));

    let put =
        |id: &str, body: Value| server.ask("PUT", &format!("/sandboxes/{id}/network"), Some(body));
    put(&closed, json!({"denyOut": ["198.51.100.7"]})).expect(204);
    assert_eq!(
        policy(&closed),
        json!({"mode": "full", "deny": ["198.51.100.7/32"]})
    );
    let detail = server.get(&closed).expect(200);
    assert_eq!(detail["allowInternetAccess"], Value::Null);
    put(&closed, json!({})).expect(204);
    assert_eq!(policy(&closed), json!({"mode": "full"}));

    let message = put(&open, json!({"denyOut": ["example.com"]})).is_error(400);
    assert_eq!(message, "invalid denied CIDR example.com");
    put(
        &open,
        json!({"allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"]}),
    )
    .is_error(400);
    put(&open, json!({"allowOut": ["10.0.0.1"]})).is_error(400);
    put(&open, json!({"rules": {"example.com": []}})).is_error(400);
    put(&open, json!({"egressProxy": {"address": "192.0.2.1:1080"}})).is_error(403);
    assert_eq!(
        policy(&open),
        json!({"mode": "full"}),
        "what is refused changes nothing"
    );
}

#[test]
fn ports_that_are_not_public_have_a_token_that_stays() {
    let mut server = server();
    let made = server.create(json!({
        "network": {"allowPublicTraffic": false, "maskRequestHost": "localhost:${PORT}"},
    }));
    let token = made["trafficAccessToken"].as_str().unwrap();
    assert!(token.len() >= 32, "{token}");
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    server.crash();
    server.start_again();
    let target = format!("/v2/sandboxes/{id}/connect");
    assert_eq!(server.ask("POST", &target, None).expect(200), made);
    let detail = server.get(&id).expect(200);
    let expected = json!({
        "allowPublicTraffic": false,
        "maskRequestHost": "localhost:${PORT}",
    });
    assert_eq!(detail["network"], expected);
}

#[test]
fn use_and_events_are_told() {
    let server = server();
    let id = server.create_id(json!({}));
    let metrics = |query: &str| {
        let target = format!("/sandboxes/{id}/metrics{query}");
        server.ask("GET", &target, None).expect(200)
    };
    let sample = eventually("the first sample", || {
        metrics("").as_array().unwrap().first().cloned()
    });
    assert_eq!(sample["cpuCount"], 2);
    assert_eq!(sample["memTotal"], 1024 * 1024 * 1024);
    assert!(sample["memUsed"].as_i64().unwrap() > 0, "{sample}");
    assert!(
        sample["diskTotal"].as_i64() > sample["diskUsed"].as_i64(),
        "{sample}"
    );
    assert_eq!(moment(&sample["timestamp"]) / 1000, sample["timestampUnix"]);
    assert_eq!(metrics("?start=1&end=2"), json!([]));
    let stranger = "i00000000000000000000";
    let target = format!("/sandboxes/metrics?sandbox_ids={id},{stranger}");
    let latest = server.ask("GET", &target, None).expect(200);
    let names: Vec<&String> = latest["sandboxes"].as_object().unwrap().keys().collect();
    assert_eq!(names, [&id]);

    server.kill(&id).expect(204);
    let logs = server
        .ask("GET", &format!("/sandboxes/{id}/logs"), None)
        .expect(200);
    let messages: Vec<&str> = logs["logEntries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["message"].as_str().unwrap())
        .collect();
    assert_eq!(
        messages,
        ["sandbox started", "sandbox ended: killed on request"]
    );
    let line: Value = serde_json::from_str(logs["logs"][0]["line"].as_str().unwrap()).unwrap();
    assert_eq!(line["level"], "info");
    let target = format!("/v2/sandboxes/{id}/logs?direction=backward&limit=1&search=ended");
    let logs = server.ask("GET", &target, None).expect(200);
    assert_eq!(logs["logs"].as_array().unwrap().len(), 1);
    server
        .ask("GET", "/sandboxes/i00000000000000000000/logs", None)
        .is_error(404);
}
