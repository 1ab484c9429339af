//! What is tried again, and what never is: a guest that certainly did not get
//! the code gets it later, one that may have got it never twice.
//!
//! The guest here is a program of ours on this host, behind a way that fails as
//! often as it is told to.

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
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atoll_control::LiveSandbox;
use atoll_control::executions::{Executions, HistorySettings};
use atoll_control::identity::{Access, Identity, now_ms};
use atoll_control::lifecycle::{Foundation, Lifecycle, Settings};
use atoll_control::running::{CodeAccess, Ingress, Running, RunningSandboxes};
use atoll_control::sessions::{SessionSettings, Sessions};
use atoll_control::templates::TemplateCatalog;
use atoll_engine::{
    Attachment, CreateError, Dial, Limits, NetworkPolicy, Outcome, Runtime, Sandbox, SandboxError,
    SandboxId, SandboxSpec, Stats, Still, Tier,
};
use atoll_guest_client::InitRequest;
use atoll_server::control_plane::{AgentServices, ControlPlane, router};
use atoll_server::{Bounds, Entrance, Names, Services, serve};
use atoll_store::db::{
    Change, Created, Database, Location, Metadata, NewSandbox, NodeId, SandboxState,
};
use serde_json::{Value, json};

/// Runs code, or hangs up when it has heard it.
#[derive(Clone)]
struct Guest {
    id: SandboxId,
    address: SocketAddr,
    /// How many times nobody will be there.
    absent: Arc<AtomicUsize>,
    /// How many times it will hang up when it has heard the code.
    rude: Arc<AtomicUsize>,
    /// How often it heard code.
    heard: Arc<AtomicUsize>,
}

impl Guest {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let guest = Self {
            id: SandboxId::random().unwrap(),
            address: listener.local_addr().unwrap(),
            absent: Arc::default(),
            rude: Arc::default(),
            heard: Arc::default(),
        };
        let listening = guest.clone();
        std::thread::spawn(move || {
            for peer in listener.incoming().flatten() {
                let guest = listening.clone();
                std::thread::spawn(move || guest.speak(peer));
            }
        });
        guest
    }

    fn speak(&self, mut peer: TcpStream) {
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        while !received.windows(4).any(|four| four == b"\r\n\r\n") {
            match peer.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(length) => received.extend_from_slice(&buffer[..length]),
            }
        }
        let head = String::from_utf8_lossy(&received).into_owned();
        let said = if head.starts_with("POST /execute") {
            self.heard.fetch_add(1, Ordering::SeqCst);
            if take_one(&self.rude) {
                return;
            }
            let events =
                "{\"type\":\"stdout\",\"text\":\"ran\\n\"}\n{\"type\":\"end_of_execution\"}\n";
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{events}",
                events.len()
            )
        } else {
            "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned()
        };
        let _ = peer.write_all(said.as_bytes());
        let _ = peer.shutdown(std::net::Shutdown::Write);
        while matches!(peer.read(&mut buffer), Ok(length) if length > 0) {}
    }
}

/// Whether there was one left.
fn take_one(count: &AtomicUsize) -> bool {
    let take = |left: usize| left.checked_sub(1);
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
        .is_ok()
}

impl Dial for Guest {
    fn dial(&self, _port: u16) -> io::Result<TcpStream> {
        if take_one(&self.absent) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        TcpStream::connect(self.address)
    }
}

impl Sandbox for Guest {
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
        Ok(Stats::default())
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

impl Runtime for Guest {
    fn tier(&self) -> Tier {
        Tier::Container
    }

    fn create(&self, _spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, CreateError> {
        Ok(Box::new(self.clone()))
    }
}

/// A server with one sandbox.
struct World {
    address: SocketAddr,
    guest: Guest,
    key: String,
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
        let guest = Guest::start();
        let id = guest.id.clone();
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
        let created = database.create_sandbox(&fence, &new, None).await.unwrap();
        let Created::New(row) = created else {
            panic!("{created:?}")
        };
        let running_now = Change {
            state: Some(SandboxState::Running),
            ..Change::default()
        };
        let changing = database.change_sandbox(&fence, id.as_str(), row.expected(), &running_now);
        changing.await.unwrap();
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
        let runtime = Arc::new(guest.clone());
        let live = LiveSandbox::open(runtime.clone(), spec, InitRequest::default()).await;
        let running = Arc::new(RunningSandboxes::default());
        running.insert(Arc::new(Running {
            id,
            tenant: caller.tenant,
            live: live.unwrap(),
            limits: Limits::default(),
            ingress: Ingress::default(),
            code_access: CodeAccess::TokenHolders,
        }));
        let lifecycle = Lifecycle::new(Foundation {
            home: home.path().to_owned(),
            database: database.clone(),
            fence: fence.clone(),
            identity: identity.clone(),
            access: Arc::clone(&access),
            running: Arc::clone(&running),
            runtime,
            catalog: TemplateCatalog::open(home.path()).unwrap(),
            settings: Settings::default(),
        });
        let history = HistorySettings::default();
        let executions =
            Executions::open(lifecycle.clone(), database.clone(), fence.clone(), history);
        let executions = executions.await.unwrap();
        let places = executions.places(Arc::clone(&running));
        let sessions = Sessions::open(
            places.clone(),
            database.clone(),
            fence,
            identity.sealer.clone(),
            SessionSettings::default(),
        );
        let agents = AgentServices {
            executions,
            sessions: sessions.await.unwrap(),
            places,
        };
        let plane = ControlPlane::new(lifecycle, identity.keys.clone(), database, agents, None);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let services = Services {
            control: router(Arc::new(plane)),
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
            guest,
            key: issued.key.reveal().to_owned(),
            _home: home,
        }
    }

    /// Runs code while the guest is absent and rude so often: the status, the
    /// answer, how long it took, and how often the guest heard the code.
    async fn run(&self, absent: usize, rude: usize) -> (u16, Value, Duration, usize) {
        self.guest.absent.store(absent, Ordering::SeqCst);
        self.guest.rude.store(rude, Ordering::SeqCst);
        self.guest.heard.store(0, Ordering::SeqCst);
        let body = json!({"code": "print('ran')"}).to_string();
        let request = format!(
            "POST /api/v1/sandboxes/{}/execute HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.guest.id,
            self.key,
            body.len()
        );
        let address = self.address;
        let begun = Instant::now();
        let asked = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = asked.await.unwrap();
        let took = begun.elapsed();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        (status, body, took, self.guest.heard.load(Ordering::SeqCst))
    }
}

fn waits(attempts: &Value) -> Vec<(u64, u64)> {
    let attempts = attempts.as_array().unwrap().iter();
    let number = |one: &Value, name: &str| one[name].as_u64().unwrap();
    attempts
        .map(|one| {
            assert!(!one["message"].as_str().unwrap().is_empty());
            (number(one, "number"), number(one, "waited_ms"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_reached_nobody_is_sent_again_and_the_answer_lists_the_attempts() {
    let world = World::new().await;
    let (status, body, _, heard) = world.run(0, 0).await;
    assert_eq!(
        (status, &body["stdout"], heard),
        (200, &json!("ran\n"), 1),
        "{body:#}"
    );
    assert_eq!(body["attempts"], json!([]));

    let (status, body, took, heard) = world.run(2, 0).await;
    assert_eq!(
        (status, &body["stdout"], heard),
        (200, &json!("ran\n"), 1),
        "{body:#}"
    );
    assert_eq!(waits(&body["attempts"]), [(1, 100), (2, 200)]);
    assert!(took >= Duration::from_millis(300), "{took:?}");

    // Not for ever.
    let (status, body, _, heard) = world.run(3, 0).await;
    assert_eq!(
        (status, &body["code"], heard),
        (503, &json!("SANDBOX_UNAVAILABLE"), 0),
        "{body:#}"
    );
    assert_eq!(waits(&body["attempts"]), [(1, 100), (2, 200), (3, 0)]);
    let (status, _, _, heard) = world.run(0, 0).await;
    assert_eq!((status, heard), (200, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_may_have_run_is_never_sent_twice() {
    let world = World::new().await;
    for absent in [0, 1] {
        let (status, body, _, heard) = world.run(absent, 1).await;
        assert_eq!(heard, 1, "{body:#}");
        assert_eq!(
            (status, &body["code"]),
            (503, &json!("SANDBOX_UNAVAILABLE")),
            "{body:#}"
        );
        let said = body.to_string();
        assert!(
            said.contains("broke off") || said.contains("may have run"),
            "{said}"
        );
    }
}
