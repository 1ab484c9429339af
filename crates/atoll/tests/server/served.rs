//! A server with sandboxes behind it, put there by hand: a real database, real
//! keys, real sandboxes, and a control plane that only says its name.

use std::net::SocketAddr;
use std::sync::Arc;

use atoll_control::LiveSandbox;
use atoll_control::identity::{Access, Caller, Identity, now_ms};
use atoll_control::running::{CodeAccess, Ingress, Running, RunningSandboxes};
use atoll_engine::{Attachment, Limits, MonitoredRuntime, Runtime};
use atoll_guest_client::{Command, InitRequest, ProcessEvent};
use atoll_server::{Bounds, Entrance, Names, Services, serve};
use atoll_store::db::{Created, Database, Fence, Location, Metadata, NewSandbox, NodeId};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::sandboxes::{LIFETIME, Sandboxes};
use crate::harness::tier;
use crate::wire::{Answer, Wire};

/// What the control plane says to everything.
pub const CONTROL: &str = "the control plane";

/// A server that runs.
pub struct Served {
    pub address: SocketAddr,
    pub running: Arc<RunningSandboxes>,
    pub access: Arc<Access>,
    pub identity: Identity,
    database: Database,
    fence: Fence,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    /// Last, for it looks at what is left.
    pub sandboxes: Sandboxes,
}

/// A sandbox and the token of whoever made it.
pub struct Reached {
    pub sandbox: Arc<Running>,
    pub token: String,
}

impl Reached {
    pub fn id(&self) -> &str {
        self.sandbox.id.as_str()
    }
}

/// How a server is set up.
#[derive(Default)]
pub struct Setup {
    pub names: Names,
    pub bounds: Bounds,
    pub certificates: Option<Arc<atoll_server::tls::Certificates>>,
}

impl Served {
    pub async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    pub async fn with(setup: Setup) -> Self {
        let sandboxes = tokio::task::spawn_blocking(Sandboxes::new).await.unwrap();
        let home = sandboxes.home.path();
        let node = NodeId::of_home(home).unwrap();
        let database = Database::open(&Location::of_home(home), node)
            .await
            .unwrap();
        let identity = Identity::open(home, database.clone()).await.unwrap();
        let fence = database.begin_epoch(now_ms()).await.unwrap();
        let access = Access::load(database.clone(), identity.mint.clone()).await;
        let (access, running) = (Arc::new(access.unwrap()), Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let entrance = match setup.certificates {
            None => Entrance::Plain(listener),
            Some(certificates) => Entrance::Tls {
                listener,
                certificates,
            },
        };
        let services = Services {
            control: axum::Router::new().fallback(async || CONTROL),
            running: Arc::clone(&running),
            access: Arc::clone(&access),
            names: setup.names,
            bounds: setup.bounds,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            serve(vec![entrance], services, stopped).await.unwrap();
        });
        Self {
            address,
            running,
            access,
            identity,
            database,
            fence,
            stop: Some(stop),
            server,
            sandboxes,
        }
    }

    /// Somebody with a key of their own.
    pub async fn caller(&self, tenant: &str) -> Caller {
        let issued = self.identity.keys.create("test", tenant, None).await;
        let issued = issued.unwrap();
        let caller = self.identity.keys.authenticate(issued.key.reveal()).await;
        caller.unwrap()
    }

    /// A sandbox of somebody new.
    pub async fn sandbox(&self) -> Reached {
        let caller = self.caller("default").await;
        self.sandbox_of(&caller, Ingress::default()).await
    }

    /// A sandbox of `caller`, as the life cycle would make it.
    pub async fn sandbox_of(&self, caller: &Caller, ingress: Ingress) -> Reached {
        let limits = Limits {
            pids: 2048,
            disk_mib: 4096,
            ..Limits::default()
        };
        let spec = self
            .sandboxes
            .spec(Attachment::Client, LIFETIME, limits.clone());
        let id = spec.id.clone();
        let now_ms = now_ms();
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
            created_at_ms: now_ms,
            end_at_ms: now_ms + 3_600_000,
        };
        let created = self.database.create_sandbox(&self.fence, &new, None).await;
        assert!(matches!(created, Ok(Created::New(_))), "{created:?}");
        let runtime: Arc<dyn Runtime> =
            Arc::new(MonitoredRuntime::new(self.sandboxes.config.clone(), tier()));
        let variables = [
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", id.as_str()),
            ("E2B_TEMPLATE_ID", &self.sandboxes.template_id),
            ("SUITE_VARIABLE", "from the suite"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let init = InitRequest {
            default_user: Some("user".to_owned()),
            env_vars: Some(variables.into_iter().collect()),
            ..InitRequest::default()
        };
        let live = LiveSandbox::open(runtime, spec, init).await.unwrap();
        self.access.begin_sandbox(id.clone(), caller.tenant);
        let token = self.access.grant(caller, &id).await.unwrap();
        let sandbox = Arc::new(Running {
            id,
            tenant: caller.tenant,
            live,
            limits,
            ingress,
            code_access: CodeAccess::TokenHolders,
        });
        self.running.insert(Arc::clone(&sandbox));
        Reached {
            sandbox,
            token: token.reveal().to_owned(),
        }
    }

    /// Ends a sandbox in the order in which the life cycle does it.
    pub async fn kill(&self, reached: &Reached) {
        self.running.remove(&reached.sandbox.id);
        self.access.end_sandbox(&reached.sandbox.id);
        reached.sandbox.live.destroy().await.unwrap();
    }

    /// One request on a connection of its own.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut wire = Wire::open(self.address).await;
        wire.send(request).await;
        wire.answer().await
    }

    /// Stops the server, as it does for SIGTERM.
    pub async fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
            (&mut self.server).await.unwrap();
        }
    }

    /// Ends everything, and looks at what is left.
    pub async fn end(mut self, sandboxes: impl IntoIterator<Item = Reached>) {
        for reached in sandboxes {
            if self.running.get(reached.id()).is_some() {
                self.kill(&reached).await;
            }
        }
        self.stop().await;
        self.database.close().await;
    }
}

/// Starts a program in a sandbox and waits for its first output.
pub async fn start_program(sandbox: &Running, code: &str) {
    let command = Command {
        cmd: "python3".to_owned(),
        args: vec!["-u".to_owned(), "-c".to_owned(), code.to_owned()],
        ..Command::default()
    };
    let mut process = sandbox.live.guest().start(&command).await.unwrap();
    match process.next().await.unwrap().unwrap() {
        ProcessEvent::Stdout(_) => {}
        ProcessEvent::Stderr(text) => panic!("{}", String::from_utf8_lossy(&text)),
        other => panic!("{other:?}"),
    }
}
