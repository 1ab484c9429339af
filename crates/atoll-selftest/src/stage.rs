//! Real sandboxes for attacks, and one to be attacked: the neighbour.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    Attachment, CreateError, Limits, NetworkPolicy, Runtime, Sandbox, SandboxError, SandboxId,
    SandboxSpec, Tier, open_files_ceiling,
};
use atoll_guest_client::{Command, ExitStatus, GuestClient, GuestError, InitRequest, ProcessEvent};
use serde_json::{Map, Value};

use crate::case::{Numbers, User};
use crate::keeper::random_text;
use crate::neighbour::Belongings;
use crate::program::{self, Report};

/// What is kept of a program's output.
pub(crate) const OUTPUT_LIMIT: u64 = 256 * 1024;
/// Longer than any attack takes.
const ATTACK_BOUND: Duration = Duration::from_secs(45);
/// A guest that does not come up by then never will.
const READY_BOUND: Duration = Duration::from_secs(30);
/// A sandbox of a selftest ends after this, whatever happens.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// What lives in the neighbour.
const NEIGHBOUR: &str = include_str!("../attacks/neighbour.py");

/// Why there is no sandbox to attack from, or no answer from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    #[error("cannot create the sandbox: {0}")]
    Create(#[from] CreateError),
    #[error("the guest does not answer: {0}")]
    Guest(#[from] GuestError),
    #[error("the sandbox fails: {0}")]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Host(#[from] std::io::Error),
    #[error("the neighbour is not ready: {0}")]
    Neighbour(String),
}

/// What a sandbox is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    /// Nothing.
    None,
    /// The internet, through the walls of the network.
    Full,
}

impl Connection {
    fn policy(self) -> NetworkPolicy {
        match self {
            Self::None => NetworkPolicy::None,
            Self::Full => NetworkPolicy::full(),
        }
    }
}

/// Where sandboxes of one tier are made.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) layers: Vec<PathBuf>,
    pub(crate) user: String,
}

/// A sandbox with an attacker in it.
pub(crate) struct Actor {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) guest: GuestClient,
    pub(crate) token: String,
    user: String,
}

/// What a program did.
#[derive(Debug)]
pub(crate) struct Performance {
    pub(crate) output: Vec<u8>,
    pub(crate) complaints: Vec<u8>,
    pub(crate) ended: Ended,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(i32),
    Signaled(i32),
    TimedOut,
    /// It could not be started, or nobody knows.
    Lost(String),
}

impl Ended {
    pub(crate) fn from_status(status: std::process::ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signaled(signal),
            (None, None) => Self::Lost("no status".to_owned()),
        }
    }
}

impl Performance {
    /// What the program reported; for one that was ended, that.
    pub(crate) fn report(&self) -> Result<Report, String> {
        if let Some(report) = Report::find(&self.output) {
            return Ok(report);
        }
        match &self.ended {
            Ended::Signaled(signal) => Ok(Report::failed(format!("ended by signal {signal}"))),
            Ended::TimedOut => Ok(Report::failed("nothing within its time")),
            Ended::Lost(why) => Ok(Report::failed(why.clone())),
            Ended::Exited(code) => {
                let complaints = String::from_utf8_lossy(&self.complaints);
                let last = complaints.lines().next_back().unwrap_or_default();
                Err(format!("it ended with {code} and no report: {last}"))
            }
        }
    }
}

impl Stage {
    pub(crate) fn tier(&self) -> Tier {
        self.runtime.tier()
    }

    /// A sandbox with `limits` changed, the layers `above` on top, and `connection`.
    pub(crate) async fn open(
        &self,
        limits: &Numbers,
        above: Vec<PathBuf>,
        connection: Connection,
    ) -> Result<Actor, StageError> {
        let id = SandboxId::random()?;
        let mut layers = above;
        layers.extend(self.layers.iter().cloned());
        let spec = SandboxSpec {
            hostname: id.to_string(),
            id,
            layers,
            limits: changed(limits),
            network: connection.policy(),
            env: BTreeMap::new(),
            lifetime: Some(LIFETIME),
            attachment: Attachment::Client,
            memory: None,
        };
        let runtime = Arc::clone(&self.runtime);
        let sandbox = blocking(move || runtime.create(&spec)).await??;
        let sandbox: Arc<dyn Sandbox> = Arc::from(sandbox);
        let token = random_text()?;
        let dialed = Arc::clone(&sandbox);
        let dial = Arc::new(move |port: u16| -> std::io::Result<TcpStream> { dialed.dial(port) });
        let actor = Actor {
            guest: GuestClient::new(dial, token.clone()),
            sandbox,
            token: token.clone(),
            user: self.user.clone(),
        };
        let init = InitRequest {
            access_token: Some(token),
            default_user: Some(self.user.clone()),
            ..InitRequest::default()
        };
        let ready = async {
            actor.guest.wait_ready(READY_BOUND).await?;
            actor.guest.init(&init).await
        };
        if let Err(error) = ready.await {
            actor.close().await;
            return Err(error.into());
        }
        Ok(actor)
    }
}

/// The limits of attackers: small, so that floods are short.
fn changed(numbers: &Numbers) -> Limits {
    let number = |name: &str, usual: u64| numbers.get(name).copied().unwrap_or(usual);
    Limits {
        memory_mib: number("memory_mib", 256),
        cpu_millis: number("cpu_millis", 2000),
        pids: number("pids", 256),
        disk_mib: number("disk_mib", 256),
        inodes: numbers.get("inodes").copied(),
        open_files: number("open_files", 1024).min(open_files_ceiling()),
        shm_mib: number("shm_mib", 16),
    }
}

impl Actor {
    /// Runs a program inside.
    pub(crate) async fn perform(&self, text: &str, user: User, directory: &str) -> Performance {
        let mut performance = Performance {
            output: Vec::new(),
            complaints: Vec::new(),
            ended: Ended::Lost("its output ended without a status".to_owned()),
        };
        if let Err(error) = self.follow(text, user, directory, &mut performance).await {
            performance.ended = match error {
                GuestError::DeadlineExceeded => Ended::TimedOut,
                other => Ended::Lost(other.to_string()),
            };
        }
        performance
    }

    async fn follow(
        &self,
        text: &str,
        user: User,
        directory: &str,
        performance: &mut Performance,
    ) -> Result<(), GuestError> {
        let command = Command {
            cmd: "python3".to_owned(),
            args: vec!["-I".to_owned(), "-".to_owned()],
            user: Some(self.name(user)),
            cwd: Some(directory.to_owned()),
            stdin: true,
            timeout: Some(ATTACK_BOUND),
            ..Command::default()
        };
        let mut process = self.guest.start(&command).await?;
        let input = process.input();
        input.send(text.as_bytes()).await?;
        input.close().await?;
        let room = |kept: &[u8]| {
            usize::try_from(OUTPUT_LIMIT)
                .unwrap_or(usize::MAX)
                .saturating_sub(kept.len())
        };
        while let Some(event) = process.next().await? {
            match event {
                ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes) => {
                    let kept = bytes.len().min(room(&performance.output));
                    performance.output.extend_from_slice(&bytes[..kept]);
                }
                ProcessEvent::Stderr(bytes) => {
                    let kept = bytes.len().min(room(&performance.complaints));
                    performance.complaints.extend_from_slice(&bytes[..kept]);
                }
                ProcessEvent::End(exit) => {
                    performance.ended = match exit {
                        ExitStatus::Exited(code) => Ended::Exited(code),
                        ExitStatus::Signaled(signal) => Ended::Signaled(signal),
                    };
                }
            }
        }
        Ok(())
    }

    fn name(&self, user: User) -> String {
        match user {
            User::Root => "root".to_owned(),
            User::Template => self.user.clone(),
        }
    }

    /// Whether PID 1 still answers.
    pub(crate) async fn answers(&self) -> bool {
        // What is kept idle could have been answered before.
        self.guest.close_idle();
        self.guest.wait_ready(Duration::from_secs(5)).await.is_ok()
    }

    /// Ends every process and returns where the changes over the layers can be read.
    pub(crate) async fn halt(&self) -> Result<PathBuf, StageError> {
        let sandbox = Arc::clone(&self.sandbox);
        Ok(blocking(move || sandbox.halt()).await??)
    }

    /// Removes the sandbox; one that has ended already left nothing.
    pub(crate) async fn close(self) {
        let sandbox = self.sandbox;
        let _ = blocking(move || sandbox.destroy()).await;
    }
}

/// A sandbox full of things that belong to it alone.
pub(crate) struct Neighbour {
    pub(crate) actor: Actor,
    /// What can be aimed at in it.
    pub(crate) belongings: Belongings,
}

impl Neighbour {
    pub(crate) async fn open(
        stage: &Stage,
        connection: Connection,
        secret: &str,
    ) -> Result<Self, StageError> {
        let actor = stage.open(&Numbers::new(), Vec::new(), connection).await?;
        let mut target = Map::new();
        target.insert("secret".to_owned(), Value::from(secret));
        let text = program::text(NEIGHBOUR, &target);
        let performance = actor.perform(&text, User::Root, "/").await;
        let report = performance.report().map_err(StageError::Neighbour)?;
        match Belongings::read(&report.got) {
            Ok(belongings) => Ok(Self { actor, belongings }),
            Err(why) => {
                actor.close().await;
                Err(StageError::Neighbour(why))
            }
        }
    }
}

/// Runs engine calls, which block, beside the asynchronous world.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(std::io::Error::other)
}
