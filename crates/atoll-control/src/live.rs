//! A sandbox that is ready for work: created by a runtime, its guest up and
//! sworn in with a secret that only the host knows.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    CreateError, NetworkPolicy, Outcome, Runtime, Sandbox, SandboxError, SandboxSpec, Stats,
};
use atoll_guest_client::{GuestClient, GuestError, InitRequest};

/// A guest that has not come up by then never will.
const READY_BOUND: Duration = Duration::from_secs(30);

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
        let sandbox = blocking(move || runtime.create(&spec)).await??;
        let sandbox: Arc<dyn Sandbox> = Arc::from(sandbox);
        let token = random_token()?;
        let dialed = Arc::clone(&sandbox);
        let dial = Arc::new(move |port: u16| -> io::Result<TcpStream> { dialed.dial(port) });
        let live = Self {
            sandbox,
            guest: GuestClient::new(dial, token.clone()),
        };
        let init = InitRequest {
            access_token: Some(token),
            ..init
        };
        match async {
            live.guest.wait_ready(READY_BOUND).await?;
            live.guest.init(&init).await
        }
        .await
        {
            Ok(()) => Ok(live),
            Err(source) => {
                let ending = match live.destroy().await {
                    Ok(outcome) => outcome.to_string(),
                    Err(error) => error.to_string(),
                };
                Err(OpenError::Guest { source, ending })
            }
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

    /// Puts `policy` in place of what it could reach so far.
    ///
    /// # Errors
    /// When the policy is invalid, or asks for a network that it was made without.
    pub async fn set_network(&self, policy: NetworkPolicy) -> Result<(), SandboxError> {
        self.ask(move |sandbox| sandbox.set_network(&policy)).await
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
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)
}

/// 32 random bytes as text.
fn random_token() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
