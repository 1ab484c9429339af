//! What is told of sandboxes: read, followed, and sent to webhooks.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_client::{Client, ClientError, Endpoint, EventNews, EventOptions, EventStream};
use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::harness::server::{Ask, Server};
use crate::harness::{BOUND, TestHome, eventually, home_for_builds, init_of, second_home};

/// What `GET /events` says.
fn events(server: &Server, query: &str) -> Vec<Value> {
    let page = server.ask("GET", &format!("/events{query}"), None);
    page.expect(200)["events"].as_array().unwrap().clone()
}

/// Kind and sandbox of each.
fn told(events: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let each = events.iter();
    each.map(|event| (text(&event["kind"]), text(&event["sandboxID"])))
        .collect()
}

fn ids(events: &[Value]) -> Vec<i64> {
    let each = events.iter();
    each.map(|event| event["id"].as_i64().unwrap()).collect()
}

fn gone(server: &Server, id: &str) {
    eventually("its end", || (server.get(id).status == 404).then_some(()));
}

#[test]
fn every_kind_of_event_is_told_once_with_what_is_recorded() {
    let mut server = Server::start(home_for_builds());
    let create = Ask {
        method: "POST",
        target: "/v2/sandboxes",
        headers: vec![
            ("x-api-key", server.key.clone()),
            ("content-type", "application/json".to_owned()),
            ("atoll-agent-id", "agent-7".to_owned()),
            ("atoll-task-id", "task-9".to_owned()),
        ],
        body: Some(br#"{"templateID":"base","timeout":300,"metadata":{"a":"b"}}"#.to_vec()),
    };
    let made = server.send(&create).unwrap().expect(201);
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    let post = |target: &str, body: Value| {
        let target = format!("/sandboxes/{id}{target}");
        server.ask("POST", &target, Some(body))
    };
    post("/pause", json!({})).expect(204);
    let connected = server.ask(
        "POST",
        &format!("/v2/sandboxes/{id}/connect"),
        Some(json!({"timeout": 300})),
    );
    assert!(connected.status < 300, "{connected:#?}");
    post("/snapshots", json!({"name": "kept"})).expect(201);
    let forked = post("/fork", json!({"count": 1, "timeout": 300}));
    assert!(forked.status < 300, "{forked:#?}");
    let fork = eventually("the fork", || {
        let mut listed = server.listed("").into_iter();
        listed.rfind(|other| *other != id)
    });
    server.kill(&fork).expect(204);
    server.crash();
    server.start_again();
    let target = format!("/sandboxes/{id}/timeout");
    server
        .ask("POST", &target, Some(json!({"timeout": 1})))
        .expect(204);
    // Nobody reaches it any more before it is told.
    eventually("its end", || {
        (!events(&server, "?kind=expired").is_empty()).then_some(())
    });
    server.get(&id).is_error(404);
    let other = server.create_id(json!({}));
    kill_process(Pid::from_raw(init_of(&other)).unwrap(), Signal::KILL).unwrap();
    gone(&server, &other);

    let all = eventually("all of it", || {
        let all = events(&server, "");
        (all.len() >= 11).then_some(all)
    });
    let expected = [
        ("created", &id),
        ("paused", &id),
        ("resumed", &id),
        ("snapshotted", &id),
        ("forked", &id),
        ("created", &fork),
        ("killed", &fork),
        ("adopted", &id),
        ("expired", &id),
        ("created", &other),
        ("crashed", &other),
    ];
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|(kind, id)| ((*kind).to_owned(), (*id).clone()))
        .collect();
    assert_eq!(told(&all), expected);
    assert!(ids(&all).is_sorted_by(|one, next| one < next), "{all:#?}");
    let recorded = |event: &Value| {
        let detail = &event["detail"];
        json!([
            detail["template"],
            detail["agent_id"],
            detail["task_id"],
            detail["metadata"]
        ])
    };
    let said = json!(["base", "agent-7", "task-9", {"a": "b"}]);
    for event in all.iter().filter(|event| event["sandboxID"] == *id) {
        if event["kind"] != "forked" {
            assert_eq!(recorded(event), said, "{event:#}");
        }
        assert_eq!(event["nodeID"], all[0]["nodeID"]);
        let moment: Result<jiff::Timestamp, _> = event["timestamp"].as_str().unwrap().parse();
        assert!(moment.is_ok(), "{event:#}");
    }
    let detail = |number: usize, name: &str| all[number]["detail"][name].clone();
    assert_eq!(detail(1, "reason"), "it was asked for");
    assert_eq!(detail(3, "name"), "kept");
    assert_eq!(detail(4, "fork"), *fork);
    assert_eq!(detail(5, "forked_from"), *id);
    assert_eq!(detail(6, "reason"), "killed on request");
    assert_eq!(detail(7, "state"), "running");
    let reason = detail(8, "reason");
    assert!(
        reason.as_str().unwrap().starts_with("end of the lifetime"),
        "{reason}"
    );
    assert_eq!(detail(10, "template"), "base");

    // Pages, filters, and the command say the same.
    let first = events(&server, "?limit=4");
    let rest = events(&server, &format!("?after={}", ids(&first)[3]));
    assert_eq!([first, rest].concat(), all);
    let newest = events(&server, "?direction=backward&limit=2");
    assert_eq!(ids(&newest), [ids(&all)[10], ids(&all)[9]]);
    let filtered = events(&server, &format!("?sandbox={fork}&kind=killed,crashed"));
    assert_eq!(filtered, [all[6].clone()]);
    let printed = server.run(["events", "--json"]).succeeded();
    let printed: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(printed, all);
    let shown = server
        .run(["events", "--sandbox", &other, "--kind", "crashed"])
        .succeeded();
    assert!(
        shown.contains("crashed") && shown.contains(&other),
        "{shown}"
    );
    for wrong in [
        "?kind=exploded",
        "?after=-1",
        "?after=1&before=2",
        "?limit=x",
    ] {
        let refused = server.ask("GET", &format!("/events{wrong}"), None);
        refused.is_error(400);
    }
}

fn client(server: &Server, key: &str) -> Client {
    let url = format!("http://{}", server.address());
    Client::new(Endpoint::new(&url, key).unwrap()).unwrap()
}

async fn next(stream: &mut EventStream) -> Option<EventNews> {
    tokio::time::timeout(*BOUND, stream.next())
        .await
        .expect("the stream said nothing")
        .unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

async fn open(client: &Client, after: Option<i64>) -> EventStream {
    let all = EventOptions::default();
    client.follow_events(after, &all).await.unwrap()
}

#[test]
fn a_stream_goes_on_after_any_cut_without_loss_or_repetition() {
    let mut server = Server::start(second_home());
    run(async {
        let client = client(&server, &server.key);
        let mut stream = open(&client, None).await;
        let mut read = Vec::new();
        let id = server.create_id(json!({}));
        let kill = server.create_id(json!({}));
        for _ in 0..2 {
            let Some(EventNews::Event(event)) = next(&mut stream).await else {
                panic!("no event");
            };
            read.push(event);
        }
        // Unread: it comes with the next connection.
        server.kill(&kill).expect(204);
        drop(stream);
        server.crash();
        server.start_again();
        let mut stream = open(&client, read.last().map(|event| event.id)).await;
        server.kill(&id).expect(204);
        for _ in 0..3 {
            let Some(EventNews::Event(event)) = next(&mut stream).await else {
                panic!("no event");
            };
            read.push(event);
        }
        let read = serde_json::to_value(&read).unwrap();
        assert_eq!(read, json!(events(&server, "")));
        let kinds: Vec<&str> = read
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["kind"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["created", "created", "killed", "adopted", "killed"]);

        // A server that stops says so, and does not wait for its followers.
        server.signal(Signal::TERM);
        let end = EventNews::End("server_stopping".to_owned());
        assert_eq!(next(&mut stream).await, Some(end));
        assert_eq!(next(&mut stream).await, None);
        assert_eq!(server.ended().code, 0);
    });
    server.start_again();
}

#[test]
fn events_are_their_tenants_alone_and_a_revoked_key_ends_the_stream() {
    let server = Server::start(second_home());
    let foreign = server.key_of("other");
    let revoked = server.key_of("default");
    let listed = server.run(["key", "list", "--json"]).json();
    let keys = listed.as_array().unwrap();
    let newest = keys.iter().max_by_key(|key| key["created_at_ms"].as_i64());
    let key = newest.unwrap()["id"].as_str().unwrap().to_owned();
    run(async {
        let (theirs, mine) = (client(&server, &foreign), client(&server, &revoked));
        let mut foreign_stream = open(&theirs, Some(0)).await;
        let mut stream = open(&mine, Some(0)).await;
        let id = server.create_id(json!({}));
        server.kill(&id).expect(204);
        for kind in ["created", "killed"] {
            let Some(EventNews::Event(event)) = next(&mut stream).await else {
                panic!("no event");
            };
            assert_eq!(
                (event.kind.as_str(), event.sandbox_id.as_ref()),
                (kind, Some(&id))
            );
        }
        for query in ["", &format!("?sandbox={id}"), "?direction=backward"] {
            let page = server.ask_as(&foreign, "GET", &format!("/events{query}"), None);
            assert_eq!(page.expect(200)["events"], json!([]), "{query}");
        }
        assert_eq!(server.run(["key", "revoke", &key]).code, 0);
        let end = EventNews::End("key_revoked".to_owned());
        assert_eq!(next(&mut stream).await, Some(end));
        assert_eq!(next(&mut stream).await, None);
        let again = mine.follow_events(None, &EventOptions::default()).await;
        assert!(
            matches!(again, Err(ClientError::Unauthorized(_))),
            "{again:?}"
        );
        // The other one heard nothing of it, and still listens.
        let silent = tokio::time::timeout(Duration::from_millis(500), foreign_stream.next());
        assert!(silent.await.is_err());
    });
}

#[test]
fn a_stream_is_server_sent_events_within_bounds() {
    let server = Server::start(second_home());
    let ask = Ask {
        method: "GET",
        target: "/events",
        headers: vec![
            ("x-api-key", server.key.clone()),
            ("accept", "text/event-stream".to_owned()),
        ],
        body: None,
    };
    // One that never reads keeps nobody from anything.
    let _unread = server.open(&ask).unwrap();
    let stream = server.open(&ask).unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut until = |text: &str| {
        let mut seen = Vec::new();
        loop {
            let line = lines.next().unwrap().unwrap();
            seen.push(line.to_lowercase());
            if line.starts_with(text) {
                return seen;
            }
        }
    };
    let head = until(": alive");
    assert!(head[0].starts_with("http/1.1 200"), "{head:?}");
    let has = |line: &str| head.iter().any(|known| known == line);
    assert!(has("content-type: text/event-stream"), "{head:?}");
    assert!(has("cache-control: no-store"), "{head:?}");
    let id = server.create_id(json!({}));
    let event = until("data: ");
    assert!(event.contains(&"event: created".to_owned()), "{event:?}");
    assert!(event.last().unwrap().contains(&id), "{event:?}");

    for (header, value) in [("last-event-id", "x"), ("last-event-id", "-1")] {
        let mut wrong = ask.clone();
        wrong.headers.push((header, value.to_owned()));
        server.send(&wrong).unwrap().is_error(400);
    }
    let backward = Ask {
        target: "/events?direction=backward",
        ..ask.clone()
    };
    server.send(&backward).unwrap().is_error(400);
    // More than a tenant may have.
    let more: Vec<TcpStream> = (0..40).map(|_| server.open(&ask).unwrap()).collect();
    eventually("a refusal", || {
        let mut streams = more.iter();
        streams
            .any(|mut stream| {
                let mut start = [0; 12];
                stream.read_exact(&mut start).unwrap();
                start.ends_with(b"429")
            })
            .then_some(())
    });
    drop(more);
    server.kill(&id).expect(204);
}

/// A receiver that answers as it is told, and remembers what it heard.
struct Receiver {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<Heard>>>,
    /// Statuses of the next answers; then it is content.
    answers: Arc<Mutex<VecDeque<u16>>>,
}

#[derive(Debug, Clone)]
struct Heard {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    answered: u16,
}

impl Heard {
    fn header(&self, name: &str) -> &str {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        value.unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    fn kind(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["kind"].as_str().unwrap().to_owned()
    }

    fn assert_signed(&self, secret: &str) {
        let (id, timestamp) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(format!("{id}.{timestamp}.{}", self.body).as_bytes());
        let signature =
            base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
        assert_eq!(self.header("webhook-signature"), format!("v1,{signature}"));
        let now = jiff::Timestamp::now().as_second();
        let age = now - timestamp.parse::<i64>().unwrap();
        assert!((0..300).contains(&age), "{timestamp} at {now}");
        let body: Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(id, format!("evt_{}", body["id"]));
    }
}

impl Receiver {
    fn start(answers: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            heard: Arc::default(),
            answers: Arc::new(Mutex::new(answers.iter().copied().collect())),
        };
        let (heard, answers) = (Arc::clone(&receiver.heard), Arc::clone(&receiver.answers));
        let address = receiver.address;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                let mut headers = Vec::new();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    match line.trim_end().split_once(": ") {
                        Some((name, value)) => {
                            headers.push((name.to_lowercase(), value.to_owned()));
                        }
                        None => break,
                    }
                }
                let length = headers.iter().find(|(name, _)| name == "content-length");
                let length = length.map_or(0, |(_, length)| length.parse().unwrap());
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let status = answers.lock().unwrap().pop_front().unwrap_or(204);
                heard.lock().unwrap().push(Heard {
                    path,
                    headers,
                    body: String::from_utf8(body).unwrap(),
                    answered: status,
                });
                let answer = format!(
                    "HTTP/1.1 {status} x\r\nlocation: http://{address}/elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        receiver
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// Kind and answer of everything, once there is so much of it.
    fn exchanges(&self, count: usize) -> Vec<(String, u16)> {
        let heard = eventually("what the receiver hears", || {
            let heard = self.heard();
            (heard.len() >= count).then_some(heard)
        });
        heard.iter().map(|one| (one.kind(), one.answered)).collect()
    }
}

const SECRET: &str = "correct horse battery staple";

fn home_with_hook(receiver: &Receiver, kinds: &str) -> TestHome {
    let home = second_home();
    let secret = home.file("webhook.secret", format!("{SECRET}\n"));
    let config = format!(
        "[[webhook]]\nurl = \"http://{}/hook?token=in-the-address\"\nsecret_file = {secret:?}\nkinds = [{kinds}]\n",
        receiver.address
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    home
}

#[test]
fn a_webhook_is_told_in_order_until_it_listens_and_on_after_a_restart() {
    let receiver = Receiver::start(&[500, 302]);
    let mut server = Server::start(home_with_hook(
        &receiver,
        r#""created", "killed", "adopted""#,
    ));
    let id = server.create_id(json!({}));
    let created = |status| ("created".to_owned(), status);
    assert_eq!(
        receiver.exchanges(3),
        [created(500), created(302), created(204)]
    );
    // It does not listen when its sandbox ends, and then there is no server for a while.
    receiver.answers.lock().unwrap().extend([503; 3]);
    server.kill(&id).expect(204);
    receiver.exchanges(4);
    server.signal(Signal::KILL);
    let ended = server.ended();
    assert!(!ended.stderr.contains(SECRET) && !ended.stderr.contains("in-the-address"));
    assert!(ended.stderr.contains("is told of evt_"), "{}", ended.stderr);
    receiver.answers.lock().unwrap().clear();
    server.start_again();
    let second = server.create_id(json!({}));
    server.kill(&second).expect(204);
    let told = eventually("all of it", || {
        let heard = receiver.heard();
        let told: Vec<Heard> = heard
            .into_iter()
            .filter(|one| one.answered == 204)
            .collect();
        (told.len() >= 4).then_some(told)
    });
    let kinds: Vec<String> = told.iter().map(Heard::kind).collect();
    assert_eq!(kinds, ["created", "killed", "created", "killed"]);
    let stored = events(&server, "?kind=created,killed,adopted");
    let bodies: Vec<Value> = told
        .iter()
        .map(|one| serde_json::from_str(&one.body).unwrap())
        .collect();
    assert_eq!(bodies, stored);
    for one in receiver.heard() {
        assert_eq!(
            one.path, "/hook?token=in-the-address",
            "no redirection is followed"
        );
        assert_eq!(one.header("content-type"), "application/json");
        one.assert_signed(SECRET);
    }
    // Nothing waits for a hook that nobody answers at.
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code, 0);
    server.start_again();
}

#[test]
fn a_webhook_without_a_secret_stops_the_start_and_says_why() {
    let home = second_home();
    let config =
        "[[webhook]]\nurl = \"http://user:hidden@h/\"\nsecret_variable = \"HOOK_SECRET\"\n";
    fs::write(home.path().join("config.toml"), config).unwrap();
    let serve = |secret: Option<&str>| {
        let mut serve = home.atoll(["serve", "--listen", "127.0.0.1:0"]);
        if let Some(secret) = secret {
            serve = serve.env("HOOK_SECRET", secret);
        }
        serve.finish()
    };
    for (secret, said) in [
        (None, "`HOOK_SECRET` is not set"),
        (Some("too short"), "webhook"),
        (Some(SECRET), "a webhook's url must be"),
    ] {
        let refused = serve(secret);
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains(said), "{refused:#?}");
        assert!(refused.stderr.contains("hint:"), "{refused:#?}");
        assert!(!refused.stderr.contains("hidden"), "{refused:#?}");
        assert!(!refused.stderr.contains("too short"), "{refused:#?}");
    }
}

#[test]
fn an_encrypted_webhook_without_certificates_to_trust_stops_the_start() {
    let home = second_home();
    let config = "[[webhook]]\nurl = \"https://h/\"\nsecret_variable = \"HOOK_SECRET\"\n";
    fs::write(home.path().join("config.toml"), config).unwrap();
    let serve = home.atoll(["serve", "--listen", "127.0.0.1:0"]);
    let serve = serve.env("HOOK_SECRET", SECRET);
    let serve = serve.env("SSL_CERT_FILE", "/dev/null");
    let refused = serve.env("SSL_CERT_DIR", "/dev/null").finish();
    assert_ne!(refused.code, 0);
    let said = "webhooks with `https://` cannot be told";
    assert!(refused.stderr.contains(said), "{refused:#?}");
    assert!(refused.stderr.contains("hint:"), "{refused:#?}");
}
