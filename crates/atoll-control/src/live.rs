//! A sandbox that is ready for work: created by a runtime, its guest up and
//! sworn in with a secret that only the host knows.

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    CreateError, Memory, NetworkPolicy, Outcome, Runtime, Sandbox, SandboxError, SandboxSpec,
    Stats, Still,
};
use atoll_guest_client::{GuestClient, GuestError, InitRequest};
use atoll_protocol::Warmth;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A guest that has not come up by then never will.
const READY_BOUND: Duration = Duration::from_secs(30);

/// How long the first kernel of a template that has kernels may take. A sandbox whose
/// kernel takes longer is handed out without: it comes when somebody needs it.
const WARM_BOUND: Duration = Duration::from_secs(20);

/// Why there is no sandbox to work in.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The runtime could not make it.
    #[error("cannot create the sandbox")]
    Create(#[from] CreateError),
    /// It was made, but nobody answers inside.
    #[error("the guest does not come up ({ending})")]
    Guest {
        /// What the client saw.
        #[source]
        source: GuestError,
        /// How the sandbox ended, as the host saw it.
        ending: String,
    },
    /// The host could not do something else.
    #[error(transparent)]
    Host(#[from] io::Error),
}

/// What opens a guest to the host.
pub(crate) struct Tokens {
    /// What it knows already, where it goes on from memory.
    pub(crate) known: Option<String>,
    /// What it is told.
    pub(crate) new: String,
}

/// A running sandbox and the client of its guest.
#[derive(Clone)]
pub struct LiveSandbox {
    sandbox: Arc<dyn Sandbox>,
    guest: GuestClient,
}

impl LiveSandbox {
    /// Creates a sandbox and waits until its guest takes commands.
    ///
    /// # Errors
    /// When any of that fails; then nothing is left of it.
    pub async fn open(
        runtime: Arc<dyn Runtime>,
        spec: SandboxSpec,
        init: InitRequest,
    ) -> Result<Self, OpenError> {
        let tokens = Tokens {
            known: None,
            new: random_token()?,
        };
        Self::open_with_tokens(runtime, spec, init, tokens).await
    }

    /// The same with secrets that the caller made, and knows again after a restart.
    ///
    /// # Errors
    /// As for [`LiveSandbox::open`].
    pub(crate) async fn open_with_tokens(
        runtime: Arc<dyn Runtime>,
        spec: SandboxSpec,
        init: InitRequest,
        Tokens { known, new }: Tokens,
    ) -> Result<Self, OpenError> {
        let sandbox = blocking(move || runtime.create(&spec)).await??;
        let live = Self::known(sandbox, known.unwrap_or_else(|| new.clone()));
        let init = InitRequest {
            access_token: Some(new.clone()),
            ..init
        };
        match async {
            live.guest.wait_ready(READY_BOUND).await?;
            live.guest.init(&init).await
        }
        .await
        {
            Ok(()) => Ok(Self::of(live.sandbox, new)),
            Err(source) => {
                let ending = match live.destroy().await {
                    Ok(outcome) => outcome.to_string(),
                    Err(error) => error.to_string(),
                };
                Err(OpenError::Guest { source, ending })
            }
        }
    }

    /// Waits until the first kernel has run code, where the template has kernels, so that the
    /// first execution of a client takes no longer than the second. A sandbox without one is
    /// as good, only slower once: that is logged and no error.
    pub async fn warm(&self) {
        let id = self.sandbox.id();
        match self.guest.warm(WARM_BOUND).await {
            Ok(Warmth {
                has_kernel: true,
                start_ms,
                proof_ms,
            }) => tracing::debug!(
                "sandbox {id}: its kernel came in {start_ms} ms and ran code in {proof_ms} ms"
            ),
            Ok(Warmth { .. }) => {}
            Err(error) => tracing::warn!(
                "sandbox {id} is handed out without a kernel, which starts when code is run: {error}"
            ),
        }
    }

    /// A sandbox that runs already, and whose guest knows `token`.
    #[must_use]
    pub fn known(sandbox: Box<dyn Sandbox>, token: String) -> Self {
        Self::of(Arc::from(sandbox), token)
    }

    fn of(sandbox: Arc<dyn Sandbox>, token: String) -> Self {
        let dialed = Arc::clone(&sandbox);
        let dial = Arc::new(move |port: u16| -> io::Result<TcpStream> { dialed.dial(port) });
        Self {
            sandbox,
            guest: GuestClient::new(dial, token),
        }
    }

    /// The client of its guest.
    #[must_use]
    pub fn guest(&self) -> &GuestClient {
        &self.guest
    }

    /// The sandbox itself. Its calls block.
    #[must_use]
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// What the host measured.
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub async fn stats(&self) -> Result<Stats, SandboxError> {
        self.ask(|sandbox| sandbox.stats()).await
    }

    /// What of that an execution is judged by, in less time; see [`Sandbox::counters`].
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub async fn counters(&self) -> Result<Stats, SandboxError> {
        self.ask(|sandbox| sandbox.counters()).await
    }

    /// Puts `policy` in place of what it could reach so far.
    ///
    /// # Errors
    /// When the policy is invalid, or asks for a network that it was made without.
    pub async fn set_network(&self, policy: NetworkPolicy) -> Result<(), SandboxError> {
        self.ask(move |sandbox| sandbox.set_network(&policy)).await
    }

    /// Ends it `left` from now, also with nobody watching.
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub async fn end_after(&self, left: Duration) -> Result<(), SandboxError> {
        self.ask(move |sandbox| sandbox.end_after(left)).await
    }

    /// Stops every process in it where it stands.
    ///
    /// # Errors
    /// When the sandbox is gone or the kernel refuses; then it runs on.
    pub async fn freeze(&self) -> Result<(), SandboxError> {
        self.ask(|sandbox| sandbox.freeze()).await
    }

    /// Stops every process in it until the guard is released or dropped; see
    /// [`Sandbox::hold_still`].
    ///
    /// # Errors
    /// When the sandbox is gone or its tier cannot do that; then it runs on.
    pub async fn hold_still(&self) -> Result<Still, SandboxError> {
        self.ask(|sandbox| sandbox.hold_still()).await
    }

    /// Lets it run on.
    ///
    /// # Errors
    /// When the sandbox is gone or the kernel refuses.
    pub async fn thaw(&self) -> Result<(), SandboxError> {
        self.ask(|sandbox| sandbox.thaw()).await
    }

    /// Ends its processes and keeps its files; see [`Sandbox::suspend`].
    ///
    /// # Errors
    /// When the sandbox is gone, or its tier cannot do that.
    pub async fn suspend(&self) -> Result<(), SandboxError> {
        self.ask(|sandbox| sandbox.suspend()).await
    }

    /// Ends its processes and keeps their memory on disk; see [`Sandbox::checkpoint`].
    ///
    /// # Errors
    /// When the sandbox is gone, or that cannot be done; then it runs on.
    pub async fn checkpoint(&self) -> Result<(), SandboxError> {
        self.ask(|sandbox| sandbox.checkpoint()).await
    }

    /// Writes its memory into `directory`, and lets it run on; see [`Sandbox::write_memory`].
    ///
    /// # Errors
    /// When the sandbox is gone, or that cannot be done; then it runs on.
    pub async fn write_memory(&self, directory: PathBuf) -> Result<Memory, SandboxError> {
        let written = self
            .ask(move |sandbox| sandbox.write_memory(&directory))
            .await;
        // Its connections to the outside are broken.
        self.guest.close_idle();
        written
    }

    /// Forgets what was kept of its memory; see [`Sandbox::settle`].
    ///
    /// # Errors
    /// When the sandbox is gone.
    pub async fn settle(&self) -> Result<(), SandboxError> {
        self.ask(|sandbox| sandbox.settle()).await
    }

    /// Lets it run on after [`LiveSandbox::suspend`] or [`LiveSandbox::checkpoint`].
    ///
    /// # Errors
    /// When the sandbox is gone, or cannot be woken up; then it is suspended as before.
    pub async fn wake(&self) -> Result<(), SandboxError> {
        let woken = self.ask(|sandbox| sandbox.wake()).await;
        // Its guest knows nothing of connections from before.
        self.guest.close_idle();
        woken
    }

    /// Waits for the guest of a sandbox that has booted again, and swears it in.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn swear_in(&self, init: &InitRequest) -> Result<(), GuestError> {
        self.guest.wait_ready(READY_BOUND).await?;
        self.guest.init(init).await
    }

    /// Waits until its processes have ended, for as long as it takes.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub async fn ended(&self) -> io::Result<()> {
        let signal = self.sandbox.end_signal()?;
        // SAFETY: an `OwnedFd` is open and the same descriptor until it is dropped, here with `signal`.
        let signal = unsafe { AsyncFd::register_with_interest(signal, Interest::READABLE) }?;
        signal.readable().await.map(drop)
    }

    /// Why it ended, if it ends within `bound`.
    ///
    /// # Errors
    /// When its monitor cannot be asked.
    pub async fn wait(&self, bound: Duration) -> Result<Option<Outcome>, SandboxError> {
        self.ask(move |sandbox| sandbox.wait(bound)).await
    }

    /// Ends it and removes all of it.
    ///
    /// # Errors
    /// When something could not be removed, or it had ended before.
    pub async fn destroy(&self) -> Result<Outcome, SandboxError> {
        self.ask(|sandbox| sandbox.destroy()).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Sandbox) -> Result<T, SandboxError> + Send + 'static,
    ) -> Result<T, SandboxError> {
        let sandbox = Arc::clone(&self.sandbox);
        blocking(move || question(sandbox.as_ref()))
            .await
            .map_err(|error| SandboxError::Failed(error.to_string()))?
    }
}

/// Runs engine calls, which block, beside the asynchronous world.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)
}

/// 32 random bytes as text.
pub(crate) fn random_token() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
