//! Calls of the guest: through, exact, and only for those who may.

use serde_json::{Value, json};

use crate::served::{CONTROL, Reached, Served, start_program};
use crate::wire::{Wire, frame, request};

const UNAUTHORIZED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// A request to the guest of a sandbox, by header.
pub fn call(
    reached: &Reached,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut all = vec![
        ("e2b-sandbox-id", reached.id()),
        ("e2b-sandbox-port", "49983"),
        ("x-access-token", reached.token.as_str()),
    ];
    all.extend_from_slice(headers);
    request(method, target, &all, body)
}

pub fn start(reached: &Reached, command: &str) -> Vec<u8> {
    let process =
        json!({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command]}, "stdin": false});
    let headers = [
        ("content-type", "application/connect+json"),
        ("connect-protocol-version", "1"),
    ];
    let body = frame(&process.to_string());
    call(reached, "POST", "/process.Process/Start", &headers, &body)
}

/// Payloads of all frames of a body, the last one without its flag.
pub fn payloads(body: &[u8]) -> Vec<Value> {
    let mut rest = body;
    let mut all = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(5) {
        let length = u32::from_be_bytes(header[1..5].try_into().unwrap()) as usize;
        all.push(serde_json::from_slice(&after[..length]).unwrap());
        rest = &after[length..];
    }
    assert!(rest.is_empty());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn health_commands_files_and_ports_work_by_header() {
    let served = Served::new().await;
    let reached = served.sandbox().await;

    let health = request(
        "GET",
        "/health",
        &[
            ("e2b-sandbox-id", reached.id()),
            ("e2b-sandbox-port", "49983"),
        ],
        b"",
    );
    let answer = served.ask(health).await;
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.head.header("cache-control"), Some("no-store"));

    let answer = served.ask(start(&reached, "echo hi")).await;
    assert_eq!(answer.status(), 200);
    let events = payloads(&answer.body);
    assert_eq!(events[1], json!({"event": {"data": {"stdout": "aGkK"}}}));
    assert_eq!(
        events[2],
        json!({"event": {"end": {"exited": true, "status": "exit status 0"}}})
    );
    assert_eq!(events[3], json!({}));

    let headers = [("content-type", "application/octet-stream")];
    let upload = call(&reached, "POST", "/files?path=a.txt", &headers, b"content");
    let answer = served.ask(upload).await;
    assert_eq!(
        answer.json(),
        json!([{"name": "a.txt", "path": "/home/user/a.txt", "type": "file"}])
    );
    let answer = served
        .ask(call(&reached, "GET", "/files?path=a.txt", &[], b""))
        .await;
    assert_eq!((answer.status(), answer.text().as_str()), (200, "content"));

    start_program(&reached.sandbox, SERVICE).await;
    let user_port = request(
        "GET",
        "/x?y=1",
        &[
            ("e2b-sandbox-id", reached.id()),
            ("e2b-sandbox-port", "8000"),
        ],
        b"",
    );
    let answer = served.ask(user_port).await;
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (200, "GET /x?y=1")
    );

    let answer = served.ask(request("GET", "/sandboxes", &[], b"")).await;
    assert_eq!(answer.text(), CONTROL);
    served.end([reached]).await;
}

/// Says what it was asked.
const SERVICE: &str = "
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        text = f'{self.command} {self.path}'.encode()
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass
server = HTTPServer(('127.0.0.1', 8000), Handler)
print('listening')
server.serve_forever()
";

/// Every route of the guest that a client may call, and whether it is a file's.
const ROUTES: [(&str, &str, bool); 24] = [
    ("GET", "/metrics", false),
    ("GET", "/envs", false),
    ("GET", "/files?path=/etc/hostname", true),
    ("HEAD", "/files?path=/etc/hostname", true),
    ("POST", "/files?path=x", true),
    ("POST", "/files/compose", false),
    ("GET", "/files/lane?path=/etc/hostname", false),
    ("POST", "/files/lane?path=x", false),
    ("POST", "/process.Process/List", false),
    ("POST", "/process.Process/Start", false),
    ("POST", "/process.Process/Connect", false),
    ("POST", "/process.Process/Update", false),
    ("POST", "/process.Process/StreamInput", false),
    ("POST", "/process.Process/SendInput", false),
    ("POST", "/process.Process/SendSignal", false),
    ("POST", "/process.Process/CloseStdin", false),
    ("POST", "/filesystem.Filesystem/Stat", false),
    ("POST", "/filesystem.Filesystem/MakeDir", false),
    ("POST", "/filesystem.Filesystem/Move", false),
    ("POST", "/filesystem.Filesystem/ListDir", false),
    ("POST", "/filesystem.Filesystem/Remove", false),
    ("POST", "/filesystem.Filesystem/WatchDir", false),
    ("POST", "/filesystem.Filesystem/CreateWatcher", false),
    ("POST", "/filesystem.Filesystem/GetWatcherEvents", false),
];

/// What is said to who shows this token on a route; the body of HEAD is empty.
async fn with_token(
    served: &Served,
    reached: &Reached,
    route: (&str, &str),
    tokens: &[&str],
) -> (u16, String) {
    let mut headers = vec![
        ("e2b-sandbox-id", reached.id()),
        ("e2b-sandbox-port", "49983"),
        ("content-type", "application/json"),
    ];
    headers.extend(tokens.iter().map(|token| ("x-access-token", *token)));
    let mut wire = Wire::open(served.address).await;
    let body: &[u8] = if route.0 == "POST" { b"{}" } else { b"" };
    wire.send(request(route.0, route.1, &headers, body)).await;
    let head = wire.head().await;
    if route.0 == "HEAD" {
        wire.without_body();
    }
    let body = wire.rest().await;
    (head.status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_opens_without_the_right_token() {
    let served = Served::new().await;
    let (owner, stranger) = (served.caller("default").await, served.caller("other").await);
    let reached = served.sandbox_of(&owner, Default::default()).await;
    let neighbour = served.sandbox_of(&owner, Default::default()).await;
    let foreign = served.sandbox_of(&stranger, Default::default()).await;
    let revoked = served.caller("default").await;
    let dead = served.access.grant(&revoked, &reached.sandbox.id).await;
    let dead = dead.unwrap().reveal().to_owned();
    served.identity.keys.revoke(revoked.key).await.unwrap();
    served.access.revoke(revoked.key);

    let mut forged = reached.token.clone();
    let last = if forged.pop() == Some('0') { '1' } else { '0' };
    forged.push(last);
    let own = reached.token.as_str();
    let upper = own.to_uppercase();
    for (method, target, is_file) in ROUTES {
        let route = (method, target);
        for tokens in [
            &[forged.as_str()][..],
            &[neighbour.token.as_str()],
            &[foreign.token.as_str()],
            &[dead.as_str()],
            &[upper.as_str()],
            &["e2b_0123"],
            &[&"x".repeat(10_000)],
        ] {
            let (status, said) = with_token(&served, &reached, route, tokens).await;
            assert_eq!(status, 401, "{route:?} {tokens:?}: {said}");
            if method != "HEAD" {
                let message = if is_file {
                    "access token present in header but does not match"
                } else {
                    UNAUTHORIZED
                };
                let expected = json!({"code": 401, "message": message});
                let said: Value = serde_json::from_str(&said).unwrap();
                assert_eq!(said, expected, "{route:?}");
            }
        }
        for tokens in [
            &[][..],
            &[""],
            &[own, own],
            &[own, forged.as_str()],
            &["", own],
        ] {
            let (status, said) = with_token(&served, &reached, route, tokens).await;
            assert_eq!(status, 401, "{route:?} {tokens:?}: {said}");
        }
        let (status, said) = with_token(&served, &reached, route, &[own]).await;
        assert_ne!(status, 401, "the control of {route:?}: {said}");
    }
    served.end([reached, neighbour, foreign]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_the_routes_of_clients_is_there() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    for (method, target) in [
        ("POST", "/init"),
        ("POST", "/init/"),
        ("POST", "//init"),
        ("POST", "/%69nit"),
        ("POST", "/files/../init"),
        ("POST", "/files/%2e%2e/init"),
        ("POST", "/freeze"),
        ("POST", "/upgrade"),
        ("GET", "/"),
        ("PUT", "/files?path=a"),
        ("PUT", "/files/lane?path=a"),
        ("GET", "/files/lane/?path=a"),
        ("POST", "/files/lane/../../init"),
        ("DELETE", "/files?path=a"),
        ("GET", "/process.Process/Start"),
        ("POST", "/process.Process/start"),
        ("POST", "/health"),
    ] {
        let answer = served.ask(call(&reached, method, target, &[], b"{}")).await;
        let path = target.split('?').next().unwrap();
        assert_eq!(answer.status(), 404, "{method} {target}: {}", answer.text());
        assert_eq!(answer.json()["path"], path);
        assert_eq!(answer.json()["code"], 404);
    }
    let control = call(&reached, "GET", "/envs", &[], b"");
    assert_eq!(served.ask(control).await.json()["E2B_SANDBOX"], "true");
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_not_there_is_not_found() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    served.kill(&reached).await;
    for id in [reached.id(), "i00000000000000000000", "x", "debug"] {
        for port in ["49983", "49999", "3000"] {
            for target in ["/health", "/files?path=a", "/process.Process/Start"] {
                let headers = [
                    ("e2b-sandbox-id", id),
                    ("e2b-sandbox-port", port),
                    ("x-access-token", reached.token.as_str()),
                ];
                let method = if target.starts_with("/p") {
                    "POST"
                } else {
                    "GET"
                };
                let answer = served.ask(request(method, target, &headers, b"")).await;
                assert_eq!(answer.status(), 502);
                assert_eq!(
                    answer.text(),
                    format!(
                        r#"{{"sandboxId":"{id}","message":"The sandbox was not found","code":502}}"#
                    )
                );
            }
        }
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_the_hosts() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let answer = served
        .ask(call(&reached, "GET", "/metrics", &[], b""))
        .await;
    assert_eq!(answer.status(), 200);
    let metrics = answer.json();
    let number = |name: &str| {
        metrics[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    assert_eq!(number("cpu_count"), 2.0);
    assert_eq!(number("mem_total"), 1024.0 * 1024.0 * 1024.0);
    assert_eq!(number("mem_total_mib"), 1024.0);
    let used = number("mem_used");
    assert!((1.0..number("mem_total")).contains(&used), "{metrics}");
    let disk = number("disk_total");
    assert!(
        (3.0e9..4.4e9).contains(&disk) && number("disk_used") < disk,
        "{metrics}"
    );
    assert!((0.0..=100.0).contains(&number("cpu_used_pct")) && number("ts") > 1.7e9);
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_in_browsers_may_call() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let preflight = [
        ("host", &*format!("49983-{}.localhost", reached.id())),
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "x-access-token,content-type",
        ),
    ];
    let answer = served
        .ask(request("OPTIONS", "/process.Process/List", &preflight, b""))
        .await;
    assert_eq!(answer.status(), 204);
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-methods", "POST"),
        (
            "access-control-allow-headers",
            "x-access-token,content-type",
        ),
        ("access-control-max-age", "7200"),
    ] {
        assert_eq!(answer.head.header(name), Some(value));
    }
    assert_eq!(answer.head.header("access-control-allow-credentials"), None);
    let host = format!("49983-{}.localhost", reached.id());
    let headers = [
        ("host", host.as_str()),
        ("origin", "https://app.example"),
        ("content-type", "application/json"),
        ("x-access-token", reached.token.as_str()),
    ];
    for (headers, status) in [(&headers[..], 200), (&headers[..3], 401)] {
        let answer = served
            .ask(request("POST", "/process.Process/List", headers, b"{}"))
            .await;
        assert_eq!(answer.status(), status);
        assert_eq!(answer.head.header("access-control-allow-origin"), Some("*"));
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_knows_a_preview_url_knows_nothing_else() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    start_program(&reached.sandbox, SERVICE).await;
    let on = |port: &str, target: &str| {
        let host = format!("{port}-{}.localhost", reached.id());
        request("GET", target, &[("host", &host)], b"")
    };
    assert_eq!(served.ask(on("8000", "/")).await.text(), "GET /");
    for target in ["/envs", "/metrics", "/files?path=/etc/passwd"] {
        assert_eq!(served.ask(on("49983", target)).await.status(), 401);
    }
    let host = format!("49999-{}.localhost", reached.id());
    let body = br#"{"code":"1"}"#;
    let execute = request("POST", "/execute", &[("host", &host)], body);
    assert_eq!(served.ask(execute).await.status(), 401);
    for target in ["/envs", "/files?path=/etc/passwd", "/execute"] {
        assert_eq!(served.ask(on("49999", target)).await.status(), 404);
    }
    let answer = served.ask(on("49982", "/")).await;
    assert_eq!(
        answer.json()["message"],
        "The sandbox is running but port is not open"
    );
    for port in ["049983", "0", "65536", "115519", "-1", "4998 3"] {
        let answer = served.ask(on(port, "/envs")).await;
        assert!(
            answer.status() == 400 || answer.text() == CONTROL,
            "{port}: {}",
            answer.text()
        );
    }
    served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_from_a_client_is_an_error_for_that_client() {
    let served = Served::new().await;
    let reached = served.sandbox().await;
    let headers = [("content-type", "application/connect+json")];
    for body in [
        &b"\xff\xff\xff\xff\xffgarbage"[..],
        b"\x00\x00\x00\x00\x05{\"a\":",
        b"\x02\x00\x00\x00\x02{}",
        b"\x01\x00\x00\x00\x02{}",
        b"not a frame at all",
    ] {
        let request = call(&reached, "POST", "/process.Process/Start", &headers, body);
        let answer = served.ask(request).await;
        let text = answer.text();
        assert!(
            answer.status() >= 400 || text.contains("\"error\""),
            "{body:?}: {} {text}",
            answer.status()
        );
    }
    let answer = served.ask(start(&reached, "true")).await;
    assert_eq!(payloads(&answer.body).len(), 3);
    served.end([reached]).await;
}
