//! TLS: names below a domain, HTTP/1.1 and HTTP/2, and the same walls.

use std::sync::Arc;

use atoll_server::Names;
use atoll_server::tls::{Authority, Certificates};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::served::{CONTROL, Reached, Served, Setup, start_program};
use crate::services::{ECHO, SWITCH, on_port};
use crate::wire::{End, Wire, request};

const DOMAIN: &str = "my.zone";

struct Zone {
    served: Served,
    authority: String,
    _home: tempfile::TempDir,
}

impl Zone {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let certificates = Certificates::made(home.path(), DOMAIN).unwrap();
        let authority = Authority::open(home.path(), DOMAIN).unwrap();
        let served = Served::with(Setup {
            names: Names::default().with_domain(DOMAIN).unwrap(),
            certificates: Some(Arc::new(certificates)),
            ..Setup::default()
        })
        .await;
        Self {
            served,
            authority: authority.pem().to_owned(),
            _home: home,
        }
    }

    /// A connection to `name`, believed by who trusts the authority alone.
    async fn connect(
        &self,
        name: &str,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let stream = TcpStream::connect(self.served.address).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    /// A connection of HTTP/1.1.
    async fn wire(&self, name: &str) -> Wire {
        Wire::over(self.connect(name, &["http/1.1"]).await.unwrap())
    }

    /// A connection of HTTP/2.
    async fn http2(&self, name: &str) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = self.connect(name, &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        sender
    }
}

fn name_of(reached: &Reached, port: u16) -> String {
    format!("{port}-{}.{DOMAIN}", reached.id())
}

fn http2_request(
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> http::Request<Full<Bytes>> {
    let mut request = http::Request::builder()
        .method(method)
        .uri(format!("https://{host}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(Bytes::copy_from_slice(body)))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_domain_lead_where_they_should() {
    let zone = Zone::new().await;
    let reached = zone.served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    let api = format!("api.{DOMAIN}");
    let mut wire = zone.wire(&api).await;
    wire.send(request("GET", "/sandboxes", &[("host", &api)], b""))
        .await;
    assert_eq!(wire.answer().await.text(), CONTROL);

    let port = name_of(&reached, 8000);
    let mut wire = zone.wire(&port).await;
    wire.send(request("POST", "/x", &[("host", &port)], b"body"))
        .await;
    let echo = wire.answer().await.json();
    assert_eq!(echo["body"], "body");
    let headers = echo["headers"].to_string();
    assert!(
        headers.contains(r#"["x-forwarded-proto","https"]"#),
        "{headers}"
    );

    let guest = name_of(&reached, 49983);
    let mut wire = zone.wire(&guest).await;
    for (token, status) in [(reached.token.as_str(), 200), ("wrong", 401)] {
        let headers = [("host", guest.as_str()), ("x-access-token", token)];
        wire.send(request("GET", "/envs", &headers, b"")).await;
        assert_eq!(wire.answer().await.status(), status);
    }
    let shared = format!("sandbox.{DOMAIN}");
    let mut wire = zone.wire(&shared).await;
    let headers = [
        ("host", shared.as_str()),
        ("e2b-sandbox-id", reached.id()),
        ("e2b-sandbox-port", "49983"),
    ];
    wire.send(request("GET", "/health", &headers, b"")).await;
    assert_eq!(wire.answer().await.status(), 204);

    for name in ["example.org", "a.b.my.zone"] {
        assert!(zone.connect(name, &[]).await.is_err(), "{name}");
    }
    zone.served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_reaches_guests_and_ports_on_one_connection() {
    let zone = Zone::new().await;
    let reached = zone.served.sandbox().await;
    start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    let port = name_of(&reached, 8000);
    let mut sender = zone.http2(&port).await;
    let headers = [("cookie", "a=1"), ("cookie", "b=2")];
    let request = http2_request(&port, "POST", "/x?y", &headers, b"body");
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let echo: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&echo["path"], &echo["body"]),
        (&"/x?y".into(), &"body".into())
    );
    let seen = echo["headers"].to_string();
    assert!(seen.contains(&format!(r#"["host","{port}"]"#)), "{seen}");
    assert!(seen.contains(r#"["cookie","a=1; b=2"]"#), "{seen}");

    // The certificate holds for all of them, and so does the connection.
    let guest = name_of(&reached, 49983);
    let token = [("x-access-token", reached.token.as_str())];
    let request = http2_request(&guest, "GET", "/envs", &token, b"");
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    let request = http2_request(&guest, "GET", "/envs", &[], b"");
    assert_eq!(sender.send_request(request).await.unwrap().status(), 401);
    // Two hosts in one request are none.
    let two = [("host", port.as_str()), token[0]];
    let request = http2_request(&guest, "GET", "/envs", &two, b"");
    assert_eq!(sender.send_request(request).await.unwrap().status(), 400);
    zone.served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_http2_only_the_streams_of_the_dead_break() {
    let zone = Zone::new().await;
    let (dying, living) = (zone.served.sandbox().await, zone.served.sandbox().await);
    for reached in [&dying, &living] {
        start_program(&reached.sandbox, &on_port(ECHO, 8000)).await;
    }
    let mut sender = zone.http2(&name_of(&dying, 8000)).await;
    let mut open = async |reached: &Reached| {
        let request = http2_request(&name_of(reached, 8000), "GET", "/events", &[], b"");
        let mut body = sender.send_request(request).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "data: 0\n\n");
        body
    };
    let (mut of_dying, mut of_living) = (open(&dying).await, open(&living).await);
    zone.served.kill(&dying).await;
    assert!(of_dying.frame().await.unwrap().is_err());
    let request = http2_request(&name_of(&living, 8000), "GET", "/seen/1", &[], b"");
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    let next = of_living.frame().await.unwrap().unwrap();
    assert_eq!(next.into_data().unwrap(), "data: 1\n\n");
    drop(of_living);
    zone.served.end([dying, living]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_tunnels_in_tls() {
    let zone = Zone::new().await;
    let reached = zone.served.sandbox().await;
    start_program(&reached.sandbox, &on_port(SWITCH, 8000)).await;
    let port = name_of(&reached, 8000);
    let mut wire = zone.wire(&port).await;
    let headers = [
        ("host", port.as_str()),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
    ];
    wire.send(request("GET", "/", &headers, b"early")).await;
    assert_eq!(wire.head().await.status, 101);
    assert_eq!(wire.exactly(10).await.unwrap(), b"helloearly");
    wire.send("more").await;
    assert_eq!(wire.exactly(4).await.unwrap(), b"more");
    zone.served.kill(&reached).await;
    assert_eq!(wire.end().await, End::Reset);
    zone.served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_do_not_leave_http_in_tls() {
    let zone = Zone::new().await;
    let reached = zone.served.sandbox().await;
    let guest = name_of(&reached, 49983);
    let headers = [
        ("host", guest.as_str()),
        ("x-access-token", reached.token.as_str()),
        ("connection", "upgrade"),
        ("upgrade", "atoll-file"),
    ];
    let mut wire = zone.wire(&guest).await;
    for (target, status) in [
        ("/files/lane?path=x", 426),
        ("/files?path=/etc/hostname", 200),
    ] {
        wire.send(request("GET", target, &headers, b"")).await;
        assert_eq!(wire.answer().await.status(), status, "{target}");
    }
    zone.served.end([reached]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_tls_gets_no_answer() {
    let zone = Zone::new().await;
    for bytes in [
        &b"GET / HTTP/1.1\r\nhost: my.zone\r\n\r\n"[..],
        b"\x16\x03\x01\xff\xff\x01",
        &[0; 1000],
    ] {
        let mut wire = Wire::open(zone.served.address).await;
        wire.send(bytes).await;
        wire.shutdown().await;
        let said = wire.all().await;
        assert!(!said.starts_with(b"HTTP"), "{said:?}");
    }
    let mut wire = zone.wire(DOMAIN).await;
    wire.send(request("GET", "/", &[("host", DOMAIN)], b""))
        .await;
    assert_eq!(wire.answer().await.text(), CONTROL);
    let long = "a".repeat(1 << 20);
    let mut wire = zone.wire(DOMAIN).await;
    wire.send(request("GET", "/", &[("host", DOMAIN), ("x", &long)], b""))
        .await;
    assert_eq!(wire.answer().await.status(), 431);
    let mut sender = zone.http2(DOMAIN).await;
    let request = http2_request(DOMAIN, "GET", "/", &[("x", &long)], b"");
    let refused = sender.send_request(request).await;
    assert!(refused.map_or(true, |response| response.status() == 431));
    zone.served.end([]).await;
}
