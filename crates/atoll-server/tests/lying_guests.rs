//! What a client sees of a guest that was taken over: an error, or a
//! connection that breaks; never half an answer that looks whole.
//!
//! The guest here is a program of ours on this host: no sandbox lets anybody
//! take the place of its first process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_control::LiveSandbox;
use atoll_control::identity::{Access, Identity, now_ms};
use atoll_control::running::{CodeAccess, Ingress, Running, RunningSandboxes};
use atoll_engine::{
    Attachment, CreateError, Dial, Limits, NetworkPolicy, Outcome, Runtime, Sandbox, SandboxError,
    SandboxId, SandboxSpec, Stats, Still, Tier,
};
use atoll_guest_client::InitRequest;
use atoll_server::{Bounds, Entrance, Names, Services, serve};
use atoll_store::db::{Database, Location, Metadata, NewSandbox, NodeId};

/// What nothing here comes close to taking.
const BOUND: Duration = Duration::from_secs(60);

/// A guest that says what it is told to say.
#[derive(Clone)]
struct Liar {
    id: SandboxId,
    address: SocketAddr,
    lie: Arc<Mutex<Vec<u8>>>,
    is_gone: Arc<AtomicBool>,
}

impl Liar {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let liar = Self {
            id: SandboxId::random().unwrap(),
            address: listener.local_addr().unwrap(),
            lie: Arc::default(),
            is_gone: Arc::default(),
        };
        let lie = Arc::clone(&liar.lie);
        std::thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                let lie = Arc::clone(&lie);
                std::thread::spawn(move || speak(peer, &lie));
            }
        });
        liar
    }
}

/// Answers one connection: what a guest must say until it is trusted, then lies.
fn speak(mut peer: TcpStream, lie: &Mutex<Vec<u8>>) {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while !received.windows(4).any(|four| four == b"\r\n\r\n") {
        match peer.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
        }
    }
    let head = String::from_utf8_lossy(&received).into_owned();
    let is_honest = head.starts_with("GET /health") || head.starts_with("POST /init");
    let said = if is_honest {
        b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_vec()
    } else {
        lie.lock().unwrap().clone()
    };
    // A peer that has heard enough may be gone.
    let _ = peer.write_all(&said);
    let _ = peer.shutdown(std::net::Shutdown::Write);
    // What is unread would break what was said.
    while matches!(peer.read(&mut buffer), Ok(length) if length > 0) {}
}

impl Dial for Liar {
    fn dial(&self, _port: u16) -> io::Result<TcpStream> {
        TcpStream::connect(self.address)
    }
}

impl Sandbox for Liar {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn tier(&self) -> Tier {
        Tier::Container
    }

    fn suspend(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn wake(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn write_memory(
        &self,
        _directory: &std::path::Path,
    ) -> Result<atoll_engine::Memory, SandboxError> {
        Err(SandboxError::Gone)
    }

    fn checkpoint(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn settle(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn freeze(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn thaw(&self) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn stats(&self) -> Result<Stats, SandboxError> {
        if self.is_gone.load(Ordering::Relaxed) {
            Err(SandboxError::Gone)
        } else {
            Ok(Stats::default())
        }
    }

    fn set_network(&self, _policy: &NetworkPolicy) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn end_after(&self, _left: Duration) -> Result<(), SandboxError> {
        Err(SandboxError::Gone)
    }

    fn end_signal(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn halt(&self) -> Result<PathBuf, SandboxError> {
        Err(SandboxError::Gone)
    }

    fn hold_still(&self) -> Result<Still, SandboxError> {
        Err(SandboxError::Gone)
    }

    fn wait(&self, _bound: Duration) -> Result<Option<Outcome>, SandboxError> {
        Ok(None)
    }

    fn destroy(&self) -> Result<Outcome, SandboxError> {
        Err(SandboxError::Gone)
    }
}

impl Runtime for Liar {
    fn tier(&self) -> Tier {
        Tier::Container
    }

    fn create(&self, _spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        Ok(Box::new(self.clone()))
    }
}

struct World {
    address: SocketAddr,
    liar: Liar,
    token: String,
    _home: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let node = NodeId::of_home(home.path()).unwrap();
        let database = Database::open(&Location::of_home(home.path()), node).await;
        let database = database.unwrap();
        let identity = Identity::open(home.path(), database.clone()).await.unwrap();
        let fence = database.begin_epoch(now_ms()).await.unwrap();
        let access = Access::load(database.clone(), identity.mint.clone()).await;
        let access = Arc::new(access.unwrap());
        let issued = identity.keys.create("test", "default", None).await.unwrap();
        let caller = identity.keys.authenticate(issued.key.reveal()).await;
        let caller = caller.unwrap();

        let liar = Liar::start();
        let id = liar.id.clone();
        let new = NewSandbox {
            sandbox_id: id.to_string(),
            tenant_id: caller.tenant,
            key_id: caller.key,
            template_id: "base".to_owned(),
            template_name: "base".to_owned(),
            metadata: Metadata::default(),
            limits: "{}".to_owned(),
            network: "{}".to_owned(),
            lifecycle: "{}".to_owned(),
            sealed: String::new(),
            envd_version: "0.6.13".to_owned(),
            client: String::new(),
            agent_id: None,
            task_id: None,
            created_at_ms: now_ms(),
            end_at_ms: now_ms() + 3_600_000,
        };
        database.create_sandbox(&fence, &new, None).await.unwrap();
        let spec = SandboxSpec {
            hostname: id.to_string(),
            id: id.clone(),
            layers: Vec::new(),
            limits: Limits::default(),
            network: NetworkPolicy::None,
            env: BTreeMap::new(),
            lifetime: None,
            attachment: Attachment::Client,
            memory: None,
        };
        let live = LiveSandbox::open(Arc::new(liar.clone()), spec, InitRequest::default()).await;
        access.begin_sandbox(id.clone(), caller.tenant);
        let token = access.grant(&caller, &id).await.unwrap();
        let running = Arc::new(RunningSandboxes::default());
        running.insert(Arc::new(Running {
            id,
            tenant: caller.tenant,
            live: live.unwrap(),
            limits: Limits::default(),
            ingress: Ingress::default(),
            code_access: CodeAccess::TokenHolders,
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let services = Services {
            control: axum::Router::new(),
            running,
            access,
            names: Names::default(),
            bounds: Bounds::default(),
        };
        tokio::spawn(serve(
            vec![Entrance::Plain(listener)],
            services,
            std::future::pending(),
        ));
        Self {
            address,
            liar,
            token: token.reveal().to_owned(),
            _home: home,
        }
    }

    /// All bytes of the answer to a call when the guest says `lie`, and
    /// whether the connection was broken off.
    async fn ask(&self, method: &str, target: &str, kind: &str, lie: &[u8]) -> (String, bool) {
        let headers = format!("connection: close\r\ncontent-type: {kind}");
        self.ask_with(method, target, &headers, lie).await
    }

    async fn ask_with(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        lie: &[u8],
    ) -> (String, bool) {
        *self.liar.lie.lock().unwrap() = lie.to_vec();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: localhost\r\n\
             e2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\nx-access-token: {}\r\n\
             {headers}\r\n\r\n",
            self.liar.id, self.token
        );
        let address = self.address;
        let asked = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(BOUND)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
            let is_broken = loop {
                match stream.read(&mut buffer) {
                    Ok(0) => break false,
                    Ok(length) => said.extend_from_slice(&buffer[..length]),
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                        break true;
                    }
                }
                if is_whole(&said) {
                    break false;
                }
            };
            (String::from_utf8_lossy(&said).into_owned(), is_broken)
        });
        asked.await.unwrap()
    }

    async fn unary(&self, lie: &[u8]) -> (String, bool) {
        self.ask("POST", "/process.Process/List", "application/json", lie)
            .await
    }

    async fn stream(&self, lie: &[u8]) -> (String, bool) {
        let kind = "application/connect+json";
        self.ask("POST", "/process.Process/Connect", kind, lie)
            .await
    }

    /// The same for a lane.
    async fn lane(&self, method: &str, lie: &[u8]) -> (String, bool) {
        let headers = "connection: upgrade\r\nupgrade: atoll-file";
        self.ask_with(method, "/files/lane?path=a", headers, lie)
            .await
    }

    async fn file(&self, lie: &[u8]) -> (String, bool) {
        self.ask("GET", "/files?path=a", "text/plain", lie).await
    }
}

/// Whether an answer with a length is all there: only lanes are asked for
/// without asking for the end of the connection too.
fn is_whole(said: &[u8]) -> bool {
    let text = String::from_utf8_lossy(said);
    let length = |head: &str| {
        let line = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))?;
        line.parse::<usize>().ok()
    };
    let is_kept = !text.contains("\r\nconnection: close\r\n");
    text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
        is_kept && length(head).is_some_and(|length| body.len() >= length)
    })
}

/// Heads that are none, and what is said about them in the end.
fn broken_heads() -> Vec<Vec<u8>> {
    let many = "x: y\r\n".repeat(1000);
    let long = "y".repeat(1_000_000);
    [
        "garbage\r\n\r\n".to_owned(),
        "HTTP/1.1 999999 What\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{many}content-length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nx: {long}\r\ncontent-length: 0\r\n\r\n"),
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_owned(),
        "HTTP/1.1 200 OK\r\nx: y\r\n folded\r\ncontent-length: 0\r\n\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_none_are_errors_that_clients_understand() {
    let world = World::new().await;
    for lie in broken_heads() {
        let shown = String::from_utf8_lossy(&lie[..lie.len().min(60)]).into_owned();
        let (said, is_broken) = world.unary(&lie).await;
        assert!(
            said.starts_with("HTTP/1.1 500 ") && !is_broken,
            "{shown}: {said}"
        );
        assert!(
            said.contains(r#"{"code":"internal","message":"#),
            "{shown}: {said}"
        );
        let (said, is_broken) = world.stream(&lie).await;
        assert!(
            said.starts_with("HTTP/1.1 200 ") && !is_broken,
            "{shown}: {said}"
        );
        assert!(
            said.contains("content-type: application/connect+json"),
            "{said}"
        );
        assert!(
            said.contains(r#"{"error":{"code":"internal""#),
            "{shown}: {said}"
        );
        let (said, is_broken) = world.file(&lie).await;
        assert!(
            said.starts_with("HTTP/1.1 502 ") && !is_broken,
            "{shown}: {said}"
        );
        assert!(
            said.contains(r#"{"code":502,"message":"#),
            "{shown}: {said}"
        );
    }
    // What a guest must not say in the server's name is not said, the rest is.
    let honest = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: a=b\r\n\
        location: http://elsewhere/\r\ncontent-length: 2\r\n\r\n{}";
    let (said, is_broken) = world.unary(honest).await;
    assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("{}") && !is_broken);
    assert!(
        !said.contains("set-cookie") && !said.contains("elsewhere"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cut_short_is_broken_off() {
    let world = World::new().await;
    let framed = |frames: &[u8]| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\n\r\n";
        [&head[..], frames].concat()
    };
    for frames in [
        &b""[..],
        b"\x00\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x00\x02{}\x00\x00",
        b"\x00\x00\x00\x00\x05{}",
        b"\x00\x00\x00\x00\x02{}\x05\x00\x00\x00\x02{}",
        b"\x00\x7f\xff\xff\xff{}",
        b"\xff\xff\xff\xff\xff",
    ] {
        let (said, is_broken) = world.stream(&framed(frames)).await;
        assert!(is_broken, "{frames:?}: {said}");
        assert!(
            !said.ends_with("0\r\n\r\n"),
            "{frames:?} looks whole: {said}"
        );
    }
    let whole = framed(b"\x00\x00\x00\x00\x02{}\x02\x00\x00\x00\x02{}");
    let (said, is_broken) = world.stream(&whole).await;
    assert!(!is_broken && said.ends_with("0\r\n\r\n"), "{said}");

    for lie in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nhello"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    ] {
        let (said, is_broken) = world.file(lie).await;
        assert!(is_broken, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_hangs_up_is_told_from_a_sandbox_that_ended() {
    let world = World::new().await;
    for is_gone in [false, true] {
        world.liar.is_gone.store(is_gone, Ordering::Relaxed);
        let expected = if is_gone {
            r#""message":"The sandbox was not found","code":502}"#
        } else {
            r#""message":"The sandbox is running but port is not open","port":49983,"code":502}"#
        };
        for said in [
            world.unary(b"").await,
            world.stream(b"").await,
            world.file(b"").await,
        ] {
            assert!(said.0.starts_with("HTTP/1.1 502 "), "{}", said.0);
            assert!(said.0.ends_with(expected), "{}", said.0);
        }
    }
}

const LANE: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: atoll-file\r\n";

fn file_lane(length: &str, bytes: &str) -> Vec<u8> {
    format!("{LANE}atoll-length: {length}\r\n\r\n{bytes}").into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_file_passes_what_was_announced_or_it_breaks() {
    let world = World::new().await;
    let (said, is_broken) = world.lane("GET", &file_lane("5", "hello")).await;
    assert!(!is_broken && said.starts_with("HTTP/1.1 101 "), "{said}");
    assert!(said.contains("atoll-length: 5\r\n"), "{said}");
    assert!(said.ends_with("\r\n\r\nhello"), "{said}");
    // What follows is nobody's.
    let (said, is_broken) = world.lane("GET", &file_lane("5", "hello, and more")).await;
    assert!(!is_broken && said.ends_with("\r\n\r\nhello"), "{said}");
    let (said, is_broken) = world.lane("GET", &file_lane("0", "hello")).await;
    assert!(!is_broken && said.ends_with("\r\n\r\n"), "{said}");
    for (length, bytes) in [
        ("6", "hello"),
        ("500", ""),
        ("18446744073709551615", "hello"),
    ] {
        let (said, is_broken) = world.lane("GET", &file_lane(length, bytes)).await;
        assert!(is_broken, "{length}: {said}");
    }
    for length in ["", "-1", "+5", "five", "99999999999999999999999"] {
        let (said, _) = world.lane("GET", &file_lane(length, "hello")).await;
        assert!(said.starts_with("HTTP/1.1 502 "), "{length}: {said}");
        assert!(!said.contains("hello"), "{said}");
    }
    let none = format!("{LANE}\r\nhello").into_bytes();
    assert!(
        world
            .lane("GET", &none)
            .await
            .0
            .starts_with("HTTP/1.1 502 ")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_verdict_passes_one_or_the_lane_breaks() {
    let world = World::new().await;
    let verdict = |bytes: &[u8]| [LANE.as_bytes(), b"\r\n", bytes].concat();
    let whole = b"\x01\xfb\0\0\0\x04full";
    for (said_by_guest, rest) in [(&whole[..], &b""[..]), (whole, b"and more")] {
        let lie = verdict(&[said_by_guest, rest].concat());
        let (said, is_broken) = world.lane("POST", &lie).await;
        assert!(!is_broken && said.starts_with("HTTP/1.1 101 "), "{said}");
        assert!(said.ends_with("full") && !said.contains("more"), "{said}");
    }
    for lie in [
        &b""[..],
        b"\x01",
        b"\x01\xfb\0\0\0\x05full",
        b"\x01\xfb\xff\xff\xff\xfffull",
    ] {
        let (said, is_broken) = world.lane("POST", &verdict(lie)).await;
        assert!(is_broken, "{lie:?}: {said}");
        assert!(!said.contains("full"), "{said}");
    }
    // Lies of HTTP are those of every answer.
    for lie in broken_heads() {
        for method in ["GET", "POST"] {
            let (said, _) = world.lane(method, &lie).await;
            assert!(said.starts_with("HTTP/1.1 502 "), "{said}");
        }
    }
    let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nset-cookie: a=b\r\n\r\nhi";
    let (said, _) = world.lane("GET", plain).await;
    assert!(
        said.starts_with("HTTP/1.1 200 ") && !said.contains("cookie"),
        "{said}"
    );
}
