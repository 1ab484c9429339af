//! Ports of users: what passes, what does not, and who may come.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_control::running::Ingress;
use serde_json::{Value, json};

use crate::served::{Reached, Served, Setup, start_program};
use crate::services::{ECHO, IMPATIENT, SWITCH, on_port};
use crate::wire::{Answer, End, Wire, request};

const PORT: u16 = 8000;

/// The host name of a port.
pub fn host(reached: &Reached, port: u16) -> String {
    format!("{port}-{}.localhost:7300", reached.id())
}

pub async fn get(served: &Served, reached: &Reached, target: &str) -> Answer {
    let host = host(reached, PORT);
    served
        .ask(request("GET", target, &[("host", &host)], b""))
        .await
}

/// Headers that the service saw, by name.
fn seen(echo: &Value) -> BTreeMap<String, Vec<String>> {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pair in echo["headers"].as_array().unwrap() {
        let (name, value) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        seen.entry(name.to_owned())
            .or_default()
            .push(value.to_owned());
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_sees_the_request_and_nothing_of_ours() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let host = host(&reached, PORT);
    let headers = [
        ("host", host.as_str()),
        ("x-mine", "a"),
        ("x-mine", "b"),
        ("authorization", "Bearer theirs"),
        ("cookie", "a=1"),
        ("x-access-token", "the service's own"),
        // What belongs to the connection.
        ("connection", "keep-alive, x-hop, authorization"),
        ("x-hop", "1"),
        ("keep-alive", "5"),
        ("te", "trailers"),
        ("proxy-authorization", "secret"),
        ("expect", "100-continue"),
        // What only the server may say.
        ("e2b-sandbox-id", "i00000000000000000000"),
        ("e2b-sandbox-port", "49983"),
        ("e2b-traffic-access-token", "token"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x_forwarded_for", "6.6.6.6"),
        ("X-Forwarded-Host", "evil.example"),
        ("x-real-ip", "6.6.6.6"),
        ("forwarded", "for=6.6.6.6"),
        ("proxy", "evil.example"),
    ];
    let answer = {
        let mut wire = Wire::open(served.address).await;
        wire.send(request("POST", "/a%2fb/../c?d=%20&e", &headers, b"body"))
            .await;
        let mut head = wire.head().await;
        if head.status == 100 {
            head = wire.head().await;
        }
        let body = wire.rest().await;
        Answer { head, body }
    };
    let echo = answer.json();
    assert_eq!(
        (&echo["method"], &echo["path"], &echo["body"]),
        (
            &json!("POST"),
            &json!("/a%2fb/../c?d=%20&e"),
            &json!("body")
        )
    );
    let expected = [
        ("authorization", &["Bearer theirs"][..]),
        ("content-length", &["4"]),
        ("cookie", &["a=1"]),
        ("host", &[&host]),
        ("x-access-token", &["the service's own"]),
        ("x-forwarded-for", &["127.0.0.1"]),
        ("x-forwarded-host", &[&host]),
        ("x-forwarded-proto", &["http"]),
        ("x-mine", &["a", "b"]),
    ];
    let expected: BTreeMap<String, Vec<String>> = expected
        .iter()
        .map(|(name, values)| {
            let values = values.iter().map(|value| (*value).to_owned());
            ((*name).to_owned(), values.collect())
        })
        .collect();
    assert_eq!(seen(&echo), expected);

    // A token of the sandbox is not the service's business.
    let headers = [("host", host.as_str()), ("x-access-token", &reached.token)];
    let answer = served.ask(request("GET", "/", &headers, b"")).await;
    assert_eq!(seen(&answer.json()).get("x-access-token"), None);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_bodies_and_answers_pass_as_they_are() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let host = host(&reached, PORT);
    let headers = [("host", host.as_str())];
    for method in ["GET", "DELETE", "OPTIONS", "PUT", "PATCH"] {
        let answer = served.ask(request(method, "/x", &headers, b"")).await;
        assert_eq!(answer.json()["method"], method);
        let answer = served
            .ask(request(method, "/x", &headers, b"with body"))
            .await;
        assert_eq!(answer.json()["body"], "with body", "{method}");
    }
    for method in ["POST", "PUT"] {
        let answer = served.ask(request(method, "/x", &headers, b"")).await;
        assert_eq!(seen(&answer.json())["content-length"], ["0"], "{method}");
    }
    let mut wire = Wire::open(served.address).await;
    wire.send(request("HEAD", "/x", &headers, b"")).await;
    let head = wire.head().await;
    let length: usize = head.header("content-length").unwrap().parse().unwrap();
    assert!(head.status == 200 && length > 50, "{head:?}");
    wire.without_body();
    // The connection is good for another request.
    wire.send(request("GET", "/204", &headers, b"")).await;
    assert_eq!(wire.answer().await.status(), 204);

    let chunked = format!(
        "POST /chunks HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nhello\r\n6;extension=1\r\n world\r\n0\r\ntrailer: x\r\n\r\n"
    );
    let answer = served.ask(chunked).await;
    let echo = answer.json();
    assert_eq!(echo["body"], "hello world");
    assert_eq!(seen(&echo)["transfer-encoding"], ["chunked"]);
    assert_eq!(seen(&echo).get("trailer"), None);

    let answer = get(&served, &reached, "/cookies").await;
    let cookies: Vec<_> = answer
        .head
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie")
        .collect();
    assert_eq!(cookies, [&("set-cookie".to_owned(), "own=1".to_owned())]);
    assert_eq!(answer.head.header("x-hidden"), None);
    assert_eq!(answer.head.header("x-shown"), Some("yes"));

    let answer = served.ask(request("TRACE", "/", &headers, b"")).await;
    assert_eq!(answer.status(), 405);
    let answer = served
        .ask(format!(
            "CONNECT 127.0.0.1:49983 HTTP/1.1\r\nhost: {host}\r\n\r\n"
        ))
        .await;
    assert_eq!(answer.status(), 400);
    let old = format!("GET /old HTTP/1.0\r\nhost: {host}\r\n\r\n");
    assert_eq!(served.ask(old).await.json()["path"], "/old");
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_one_by_one() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let mut wire = Wire::open(served.address).await;
    let host = host(&reached, PORT);
    wire.send(request("GET", "/events", &[("host", &host)], b""))
        .await;
    let head = wire.head().await;
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    for number in 0..5 {
        let piece = wire.piece().await.unwrap().unwrap();
        assert_eq!(piece, format!("data: {number}\n\n").into_bytes());
        // Only now does the service send the next one.
        let next = format!("/seen/{}", number + 1);
        get(&served, &reached, &next).await;
    }
    served.kill(&reached).await;
    assert_eq!(wire.end().await, End::Reset);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_ports_are_told_from_missing_sandboxes() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let answer = get(&served, &reached, "/").await;
    assert_eq!(answer.status(), 502);
    assert_eq!(
        answer.text(),
        format!(
            r#"{{"sandboxId":"{}","message":"The sandbox is running but port is not open","port":8000,"code":502}}"#,
            reached.id()
        )
    );
    let host = host(&reached, PORT);
    let browser = [("host", host.as_str()), ("accept", "text/html")];
    let page = served.ask(request("GET", "/", &browser, b"")).await;
    assert_eq!(
        page.head.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(page.text().contains("port is not open"), "{}", page.text());

    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    assert_eq!(get(&served, &reached, "/").await.status(), 200);
    served.kill(&reached).await;
    let answer = get(&served, &reached, "/").await;
    assert_eq!(answer.json()["message"], "The sandbox was not found");
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_service_are_used_again() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let host = host(&reached, PORT);
    let mut wire = Wire::open(served.address).await;
    for _ in 0..200 {
        wire.send(request("POST", "/x", &[("host", &host)], b"body"))
            .await;
        assert_eq!(wire.answer().await.status(), 200);
    }
    let count = get(&served, &reached, "/count").await.json();
    let connections = count["connections"].as_u64().unwrap();
    assert!(connections < 20, "{count}");

    // A service that closes without a word costs nobody a request.
    start_program(&reached.sandbox, &on_port(IMPATIENT, 8001)).await;
    let host = self::host(&reached, 8001);
    for number in 0..100 {
        wire.send(request("GET", "/x", &[("host", &host)], b""))
            .await;
        let answer = wire.answer().await;
        assert_eq!(answer.text(), "ok", "{number}");
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lacks_the_traffic_token_stays_out() {
    let served = Served::new().await;
    let caller = served.caller("default").await;
    let ingress = Ingress {
        traffic_token: Some("0123456789abcdef".to_owned()),
        ..Ingress::default()
    };
    let reached = served.sandbox_of(&caller, ingress).await;
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let host = host(&reached, PORT);
    let ask = async |tokens: &[&str]| {
        let mut headers = vec![("host", host.as_str())];
        headers.extend(
            tokens
                .iter()
                .map(|token| ("e2b-traffic-access-token", *token)),
        );
        served.ask(request("GET", "/", &headers, b"")).await
    };
    for tokens in [
        &[][..],
        &[""],
        &["0123456789abcdeF"],
        &["0123456789abcde"],
        &["0123456789abcdef0"],
        &["0123456789abcdef", "0123456789abcdef"],
        &["wrong", "0123456789abcdef"],
    ] {
        let answer = ask(tokens).await;
        assert_eq!(answer.status(), 403, "{tokens:?}");
        let body = answer.json();
        assert_eq!(
            (&body["sandboxId"], &body["code"]),
            (&json!(reached.id()), &json!(403))
        );
    }
    let answer = ask(&["0123456789abcdef"]).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(seen(&answer.json()).get("e2b-traffic-access-token"), None);
    // The guest's own port has its own token.
    let guest = [("host", &*self::host(&reached, 49983))];
    let health = served.ask(request("GET", "/health", &guest, b"")).await;
    assert_eq!(health.status(), 204);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_can_be_shown_another_host() {
    let served = Served::new().await;
    let caller = served.caller("default").await;
    let ingress = Ingress {
        mask_host: Some("localhost:${PORT}".to_owned()),
        ..Ingress::default()
    };
    let reached = served.sandbox_of(&caller, ingress).await;
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let echo = get(&served, &reached, "/").await.json();
    assert_eq!(seen(&echo)["host"], ["localhost:8000"]);
    assert_eq!(seen(&echo)["x-forwarded-host"], [host(&reached, PORT)]);
    served.end([reached]).await;
}

/// A connection that was switched to another protocol.
async fn switched(served: &Served, reached: &Reached) -> Wire {
    let mut wire = Wire::open(served.address).await;
    let host = host(reached, PORT);
    let headers = [
        ("host", host.as_str()),
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    ];
    wire.send(request("GET", "/socket", &headers, b"")).await;
    let head = wire.head().await;
    assert_eq!(head.status, 101);
    assert_eq!(head.header("upgrade"), Some("websocket"));
    assert_eq!(head.header("connection"), Some("upgrade"));
    assert_eq!(head.header("sec-websocket-accept"), Some("accepted"));
    assert_eq!(wire.exactly(5).await.unwrap(), b"hello");
    wire
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_tunnels_both_ways() {
    let mut setup = Setup::default();
    // Bounds of HTTP do not end a tunnel: it is older than both.
    setup.bounds.head = std::time::Duration::from_millis(200);
    setup.bounds.idle = std::time::Duration::from_millis(200);
    let served = Served::with(setup).await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(SWITCH, PORT)).await;
    let mut wire = switched(&served, &reached).await;
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    for _ in 0..3 {
        wire.send(&sent).await;
        assert!(wire.exactly(sent.len()).await.unwrap() == sent);
    }
    // Half closed, the other half still speaks.
    wire.shutdown().await;
    assert_eq!(wire.exactly(3).await.unwrap(), b"bye");
    assert_eq!(wire.end().await, End::Closed);

    let mut cut = switched(&served, &reached).await;
    cut.send("x").await;
    assert_eq!(cut.exactly(1).await.unwrap(), b"x");
    served.kill(&reached).await;
    assert_eq!(cut.end().await, End::Reset);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_clear_wish_switches_protocols() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, &on_port(SWITCH, PORT)).await;
    let host = host(&reached, PORT);
    for headers in [
        &[("connection", "upgrade"), ("upgrade", "h2c")][..],
        &[
            ("connection", "upgrade, http2-settings"),
            ("upgrade", "H2C"),
            ("http2-settings", "x"),
        ],
        &[("upgrade", "websocket")],
        &[("connection", "upgrade")],
        &[("connection", "upgrade"), ("upgrade", "websocket, h2c")],
        &[
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("upgrade", "h2c"),
        ],
    ] {
        let mut all = vec![("host", host.as_str())];
        all.extend_from_slice(headers);
        let answer = served.ask(request("GET", "/", &all, b"")).await;
        assert_eq!(answer.status(), 200, "{headers:?}");
        let asked = answer.text().to_ascii_lowercase();
        assert!(
            !asked.contains("upgrade") && !asked.contains("http2"),
            "{asked}"
        );
    }
    switched(&served, &reached).await;
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_with_tls_of_their_own_are_reached() {
    let served = Served::new().await;
    let caller = served.caller("default").await;
    let ingress = Ingress {
        https_ports: vec![8443, 8444],
        ..Ingress::default()
    };
    let reached = served.sandbox_of(&caller, ingress).await;
    let made = rcgen::generate_simple_self_signed(["whatever.example".to_owned()]).unwrap();
    let pem = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
    let program = format!(
        "open('/tmp/both.pem', 'w').write('''{pem}''')\n{}",
        on_port(ECHO, 8443).replace(
            "print('listening')",
            "import ssl\n\
             context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
             context.load_cert_chain('/tmp/both.pem')\n\
             server.socket = context.wrap_socket(server.socket, server_side=True)\n\
             print('listening')"
        )
    );
    start_program(&reached.sandbox, &program).await;
    start_program(&reached.sandbox, &on_port(ECHO, 8444)).await;
    let ask = async |port| {
        let host = host(&reached, port);
        served
            .ask(request("POST", "/tls", &[("host", &host)], b"secret"))
            .await
    };
    let answer = ask(8443).await;
    assert_eq!(answer.json()["body"], "secret", "{}", answer.text());
    // In the clear where TLS was announced.
    let answer = ask(8444).await;
    assert_eq!(answer.status(), 502);
    assert_eq!(
        answer.json()["message"],
        "The service on port 8444 does not speak TLS"
    );
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_once_are_all_answered() {
    let served = Arc::new(Served::new().await);
    let reached = Arc::new(served.sandbox().await);
    start_program(&reached.sandbox, &on_port(ECHO, PORT)).await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..50 {
        let (served, reached) = (Arc::clone(&served), Arc::clone(&reached));
        clients.spawn(async move {
            let host = host(&reached, PORT);
            let mut wire = Wire::open(served.address).await;
            for number in 0..20 {
                let target = format!("/{client}/{number}");
                let body = format!("{client} {number}");
                wire.send(request(
                    "POST",
                    &target,
                    &[("host", &host)],
                    body.as_bytes(),
                ))
                .await;
                let echo = wire.answer().await.json();
                assert_eq!(
                    (&echo["path"], &echo["body"]),
                    (&target.into(), &body.into())
                );
                wire.send(crate::calls::call(&reached, "GET", "/envs", &[], b""))
                    .await;
                assert_eq!(wire.answer().await.json()["E2B_SANDBOX_ID"], reached.id());
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let (Ok(served), Ok(reached)) = (Arc::try_unwrap(served), Arc::try_unwrap(reached)) else {
        panic!("a client is left");
    };
    served.end([reached]).await;
}
