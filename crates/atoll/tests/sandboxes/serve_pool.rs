//! Warm pools and the room of the host: who waits, what a claim hands out, and
//! what a crash leaves of both.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use atoll_client::{Client, CodeOptions, CreateOptions, Endpoint, Sandbox};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::server::{Ask, Reply, Server};
use crate::harness::{TestHome, eventually, init_of, second_home};

const TINY: &str = "code-interpreter-v1-tiny";

fn configured(text: &str) -> TestHome {
    let home = second_home();
    fs::write(home.path().join("config.toml"), text).unwrap();
    home
}

fn pool_of(template: &str, size: usize) -> TestHome {
    configured(&format!(
        "[[pool]]\ntemplate = \"{template}\"\nsize = {size}\n"
    ))
}

/// The only pool of a server.
fn pool(server: &Server) -> Value {
    let pools = server.ask("GET", "/pools", None).expect(200);
    pools[0].clone()
}

/// Waits until the pool has as many, and names all sandboxes of the home.
fn filled(server: &Server, ready: usize) -> BTreeSet<String> {
    eventually("a full pool", || {
        (pool(server)["ready"] == json!(ready)).then_some(())
    });
    server.leased().into_iter().collect()
}

/// The only member of a pool while there is nothing else.
fn member(server: &Server) -> String {
    let all = filled(server, 1);
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

fn client(server: &Server) -> Client {
    let url = format!("http://{}", server.address());
    Client::new(Endpoint::new(&url, &server.key).unwrap()).unwrap()
}

async fn said(sandbox: &Sandbox, line: &str) -> String {
    let output = sandbox.commands().run(line).await.unwrap();
    output.stdout_text().into_owned()
}

/// What its owner asks of a sandbox that has everything.
fn wish() -> Value {
    json!({
        "timeout": 400,
        "metadata": {"user": "ada"},
        "envVars": {"GREETING": "hello there", "E2B_TEMPLATE_ID": "mine"},
        "network": {"denyOut": ["192.0.2.0/24"], "allowPublicTraffic": false},
        "autoPause": true,
    })
}

/// Everything that can be seen of a sandbox, with its own name as `ID`.
async fn seen(server: &Server, made: &Value) -> Value {
    let id = made["sandboxID"].as_str().unwrap();
    let mut detail = server.get(id).expect(200);
    let moment =
        |name: &str| -> jiff::Timestamp { detail[name].as_str().unwrap().parse().unwrap() };
    let time = moment("endAt").duration_since(moment("startedAt"));
    let age = jiff::Timestamp::now().duration_since(moment("startedAt"));
    assert!(age.as_secs() < 60, "it began when it was asked for");
    for name in [
        "startedAt",
        "endAt",
        "envdAccessToken",
        "trafficAccessToken",
    ] {
        if let Some(there) = detail.as_object_mut().unwrap().get_mut(name) {
            *there = json!(there.is_string());
        }
    }
    let mut answer = made.clone();
    for name in ["envdAccessToken", "trafficAccessToken"] {
        answer[name] = json!(answer[name].as_str().map(str::len));
    }
    let record = server.path().join("sandboxes").join(format!("{id}.json"));
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    let sandbox = client(server).connect(id, None).await.unwrap();
    let inside = said(
        &sandbox,
        "env | grep -v ^_= | sort; hostname; id; pwd; ls -A ~ /tmp /run/e2b; cat /etc/hostname /etc/hosts /run/e2b/.*; ps -eo args | grep -v -e ps -e grep -e bash",
    )
    .await;
    let logs = server
        .ask("GET", &format!("/v2/sandboxes/{id}/logs"), None)
        .expect(200);
    let logs: Vec<Value> = logs["logs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["message"].clone())
        .collect();
    let all = json!({
        "answer": answer,
        "detail": detail,
        "seconds": time.as_secs(),
        "network": record["network"],
        "limits": record["limits"],
        "inside": inside,
        "logs": logs,
    });
    serde_json::from_str(&all.to_string().replace(id, "ID")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_sandbox_looks_like_one_that_was_made_for_its_owner() {
    let pooled = Server::start(pool_of("base", 1));
    let waiting = member(&pooled);
    let warm = pooled.create(wish());
    assert_eq!(warm["sandboxID"], json!(waiting));
    assert_eq!(pool(&pooled)["claimed"], 1);
    let cold_server = Server::start(second_home());
    assert_eq!(
        cold_server.ask("GET", "/pools", None).expect(200),
        json!([])
    );
    let cold = cold_server.create(wish());
    let (warm, mut cold) = (seen(&pooled, &warm).await, seen(&cold_server, &cold).await);
    // Each server has a domain of its own.
    cold["answer"]["domain"] = warm["answer"]["domain"].clone();
    cold["detail"]["domain"] = warm["detail"]["domain"].clone();
    assert_eq!(warm, cold);
    let inside = warm["inside"].as_str().unwrap();
    for expected in [
        "GREETING=hello there\n",
        "E2B_SANDBOX_ID=ID\n",
        "E2B_TEMPLATE_ID=mine\n",
    ] {
        assert!(inside.contains(expected), "{expected} in {inside}");
    }
    assert_eq!(
        warm["network"],
        json!({"mode": "full", "deny": ["192.0.2.0/24"]})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_the_owner_reach_the_kernel_that_waited() {
    let server = Server::start(pool_of(TINY, 1));
    let waiting = member(&server);
    let client = client(&server);
    let with = |name: &str| CreateOptions {
        envs: [(name.to_owned(), "said".to_owned())].into(),
        ..CreateOptions::template(TINY)
    };
    let options = CodeOptions::default();
    let code = "import os; print(os.environ['SECRET'], os.environ['E2B_SANDBOX_ID'])";
    let sandbox = client.create(&with("SECRET")).await.unwrap();
    assert_eq!(sandbox.id(), waiting);
    let run = sandbox.code().run(code, &options, |_| ()).await.unwrap();
    assert_eq!(run.logs.stdout.concat(), format!("said {waiting}\n"));
    assert_eq!(run.execution_count, Some(1), "nobody ran code before");
    // Contexts that come later have them too, and so do commands.
    let context = sandbox.code().create_context(&Default::default()).await;
    let options = CodeOptions {
        context: Some(context.unwrap().id),
        ..options
    };
    let run = sandbox.code().run(code, &options, |_| ()).await.unwrap();
    assert_eq!(run.logs.stdout.concat(), format!("said {waiting}\n"));
    assert_eq!(said(&sandbox, "echo $SECRET").await, "said\n");

    // What a kernel reads when it starts takes a kernel that starts.
    let all = filled(&server, 1);
    let other = client.create(&with("PYTHONPATH")).await.unwrap();
    assert!(!all.contains(other.id()));
    let code = "import sys; print([path for path in sys.path if path.endswith('said')] != [])";
    let options = CodeOptions::default();
    let run = other.code().run(code, &options, |_| ()).await;
    assert_eq!(run.unwrap().logs.stdout.concat(), "True\n");
    let counted = pool(&server);
    assert_eq!(
        (&counted["claimed"], &counted["misses"]),
        (&json!(1), &json!(1))
    );
}

#[test]
fn members_are_nobodys_and_nobody_reaches_them() {
    let server = Server::start(pool_of("base", 2));
    let members = filled(&server, 2);
    let stranger = server.key_of("others");
    for key in [&server.key, &stranger] {
        assert_eq!(
            server.ask_as(key, "GET", "/v2/sandboxes", None).expect(200),
            json!([])
        );
        for id in &members {
            let absent: String = id.chars().rev().collect();
            for (method, path, body) in [
                ("GET", "/sandboxes/{}", None),
                ("DELETE", "/sandboxes/{}", None),
                ("POST", "/v2/sandboxes/{}/connect", Some(json!({}))),
                ("POST", "/sandboxes/{}/pause", None),
                ("POST", "/sandboxes/{}/timeout", Some(json!({"timeout": 1}))),
                ("PUT", "/sandboxes/{}/network", Some(json!({}))),
                ("POST", "/sandboxes/{}/snapshots", Some(json!({}))),
                ("POST", "/sandboxes/{}/fork", Some(json!({}))),
                ("GET", "/sandboxes/{}/logs", None),
                ("GET", "/sandboxes/{}/metrics", None),
            ] {
                let ask = |id: &str| {
                    let asked = path.replace("{}", id);
                    let reply = server.ask_as(key, method, &asked, body.clone());
                    (reply.status, reply.body.replace(id, "ID"))
                };
                assert_eq!(ask(id), ask(&absent), "{method} {path}");
            }
            let reach = |id: &str, port| {
                let reply = server.reach(id, port, "/health", &[]);
                (reply.status, reply.body.replace(id, "ID"))
            };
            for port in [49983, 49999, 8000] {
                assert_eq!(reach(id, port), reach(&absent, port), "port {port}");
            }
        }
    }
    // They take no places of a tenant, and are all still there.
    assert_eq!(filled(&server, 2), members);
    let refused = server.ask_as(&stranger, "GET", "/pools", None);
    refused.is_error(403);
}

#[test]
fn an_empty_pool_is_no_error_and_fills_up_again() {
    let server = Server::start(pool_of("base", 1));
    let first = member(&server);
    let made: Vec<String> = std::thread::scope(|scope| {
        let creations: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| server.create_id(json!({}))))
            .collect();
        creations
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect()
    });
    let made: BTreeSet<String> = made.into_iter().collect();
    assert_eq!(made.len(), 4);
    assert!(made.contains(&first), "the member was not used");
    let after = filled(&server, 1);
    assert!(after.is_superset(&made) && after.len() == 5, "{after:?}");
    let counted = pool(&server);
    let (claimed, misses) = (counted["claimed"].as_u64(), counted["misses"].as_u64());
    assert_eq!(claimed.unwrap() + misses.unwrap(), 4, "{counted}");
    // Used once: what is killed does not come back.
    for id in &made {
        server.kill(id).expect(204);
    }
    assert!(filled(&server, 1).is_disjoint(&made));
}

#[test]
fn one_idempotency_key_takes_one_member_and_the_others_stay() {
    let server = Server::start(pool_of("base", 2));
    let members = filled(&server, 2);
    let create = || {
        let ask = Ask {
            method: "POST",
            target: "/v2/sandboxes",
            headers: vec![
                ("x-api-key", server.key.clone()),
                ("idempotency-key", "only-one".to_owned()),
            ],
            body: Some(json!({"templateID": "base"}).to_string().into_bytes()),
        };
        let made = eventually("an answer", || {
            let reply = server.send(&ask).unwrap();
            // It is being made for somebody else.
            (reply.status != 409).then_some(reply)
        });
        made.expect(201)["sandboxID"].as_str().unwrap().to_owned()
    };
    let made: BTreeSet<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..20).map(|_| scope.spawn(create)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(made.len(), 1, "{made:?}");
    let listed: BTreeSet<String> = server.listed("").into_iter().collect();
    assert_eq!(listed, made);
    let all = filled(&server, 2);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(members.intersection(&all).count() >= 1);
}

#[test]
fn a_member_that_is_of_no_use_is_replaced_and_costs_nobody_anything() {
    let server = Server::start(pool_of("base", 1));
    let kill_guest = |id: &str| {
        let guest = Pid::from_raw(init_of(id)).unwrap();
        kill_process(guest, Signal::KILL).unwrap();
    };
    // Before anybody can have noticed.
    let dead = member(&server);
    kill_guest(&dead);
    let made = server.create_id(json!({}));
    assert_ne!(made, dead);
    assert_eq!(server.health(&made).status, 204);
    assert_eq!(server.listed(""), [made.as_str()]);
    // And with nobody asking: it is noticed, and another one comes.
    let next = filled(&server, 1);
    let dead = next.iter().find(|id| **id != made).unwrap();
    kill_guest(dead);
    eventually("another member", || {
        let counted = pool(&server);
        (counted["replaced"] == json!(1) && counted["ready"] == json!(1)).then_some(())
    });
    assert!(!server.leased().contains(dead));
    let fresh = server.create_id(json!({}));
    assert_eq!(server.health(&fresh).status, 204);
}

#[test]
fn no_member_outlives_its_server_and_no_sandbox_is_lost_with_them() {
    let mut server = Server::start(pool_of("base", 2));
    let members = filled(&server, 2);
    let made = server.create_id(json!({}));
    assert!(members.contains(&made));
    let before = filled(&server, 2);
    // Killed, it leaves them; the next start takes up what is somebody's, and nothing else.
    server.crash();
    let left: BTreeSet<String> = server.leased().into_iter().collect();
    assert_eq!(left, before);
    server.start_again();
    assert_eq!(server.health(&made).status, 204);
    let after = filled(&server, 2);
    let kept: Vec<_> = after.intersection(&before).collect();
    assert_eq!(kept, [&made]);
    // Asked to stop, it takes them along.
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code, 0);
    assert_eq!(server.leased(), [made.as_str()]);
    fs::remove_file(server.path().join("config.toml")).unwrap();
    server.start_again();
    assert_eq!(server.listed(""), [made.as_str()]);
    assert_eq!(server.leased(), [made]);
}

#[test]
fn pools_are_shown_to_people_and_to_programs() {
    let server = Server::start(configured(
        "[[pool]]\ntemplate = \"base\"\nsize = \"adaptive\"\nmax = 3\n[[pool]]\ntemplate = \"absent\"\nsize = 1\n",
    ));
    let ready = eventually("a member", || {
        let pools = server.home.run(["pool", "--json"]).json();
        (pools[0]["ready"] == json!(1) && pools[1].get("failure").is_some()).then_some(pools)
    });
    assert_eq!(
        ready[0],
        json!({
            "template": "base", "mode": "adaptive", "max": 3, "wanted": 1, "ready": 1,
            "starting": 0, "claimed": 0, "misses": 0, "replaced": 0,
        })
    );
    let failure = "template 'absent' is not built on this server: `atoll template build absent`";
    assert_eq!(ready[1]["failure"], json!(failure));
    let shown = server.home.run(["pool"]);
    assert!(shown.stdout.contains("adaptive, max 3"), "{shown:#?}");
    assert_eq!(shown.stderr, format!("absent: {failure}\n"));
    // Somebody who comes raises what is wanted.
    server.create_id(json!({}));
    assert_eq!(pool(&server)["wanted"], 2);
    filled(&server, 2);
}

fn create(server: &Server, template: &str) -> Reply {
    let body = json!({"templateID": template});
    server.ask("POST", "/v2/sandboxes", Some(body))
}

#[test]
fn who_finds_the_host_full_waits_and_is_told_what_is_full() {
    let server = Server::start(configured(
        "[host]\nmax_sandboxes = 2\nqueue_length = 1\nqueue_wait = \"4s\"\n",
    ));
    let ids = [(); 2].map(|()| server.create_id(json!({})));
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| create(&server, "base"));
        let second = scope.spawn(|| create(&server, "base"));
        (first.join().unwrap(), second.join().unwrap())
    });
    // One waited in vain; the line had no place for the other.
    let mut messages = Vec::new();
    for reply in [&first, &second] {
        assert_eq!(reply.header("retry-after"), Some("5"), "{reply:#?}");
        messages.push(reply.is_error(429));
    }
    messages.sort();
    assert_eq!(
        messages,
        [
            "the server is full: its number of sandboxes is booked, and 1 requests wait for it already",
            "the server is full: its number of sandboxes is booked, and nothing became free within 4 s",
        ]
    );
    // Who waits gets what somebody else gives back.
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| create(&server, "base"));
        std::thread::sleep(Duration::from_millis(500));
        server.kill(&ids[0]).expect(204);
        waiting.join().unwrap()
    });
    let waited = waited.expect(201)["sandboxID"].clone();
    // A server that starts again finds the host as full as it was.
    let mut server = server;
    server.crash();
    server.start_again();
    create(&server, "base").is_error(429);
    server.kill(waited.as_str().unwrap()).expect(204);
    create(&server, "base").expect(201);
}

#[test]
fn members_make_room_for_who_asks() {
    let server = Server::start(configured(&format!(
        "[host]\nmax_sandboxes = 1\n[[pool]]\ntemplate = \"{TINY}\"\nsize = 1\n"
    )));
    let waiting = member(&server);
    let made = create(&server, "base").expect(201)["sandboxID"].clone();
    assert_ne!(made, json!(waiting));
    eventually("the end of the member", || {
        (!server.leased().contains(&waiting)).then_some(())
    });
    // And none comes back while there is no room.
    let counted = eventually("a pool that knows why", || {
        let counted = pool(&server);
        counted.get("failure").is_some().then_some(counted)
    });
    assert_eq!(counted["ready"], 0);
    assert_eq!(
        counted["failure"],
        "the host has no room for another member"
    );
    server.kill(made.as_str().unwrap()).expect(204);
    member(&server);
}
