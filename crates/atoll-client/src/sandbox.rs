//! One sandbox.

use std::time::Duration;

use atoll_guest_client::GuestClient;
use atoll_protocol::rest::{Sandbox as Answered, SandboxDetail, Secret, SnapshotInfo};

use crate::client::Client;
use crate::code::{CodeInterpreter, CodeOptions, Execution, RunCodeError};
use crate::commands::Commands;
use crate::error::ClientError;
use crate::files::Files;

/// A sandbox that runs on the server. Dropping this does not end it.
#[derive(Debug, Clone)]
pub struct Sandbox {
    client: Client,
    answered: Answered,
    guest: GuestClient,
    code: GuestClient,
}

impl Sandbox {
    pub(crate) fn new(
        client: Client,
        answered: Answered,
        guest: GuestClient,
        code: GuestClient,
    ) -> Self {
        Self {
            client,
            answered,
            guest,
            code,
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.answered.sandbox_id
    }

    /// The id of its template.
    #[must_use]
    pub fn template(&self) -> &str {
        &self.answered.template_id
    }

    /// What opens its ports, when not everybody may come:
    /// the header `e2b-traffic-access-token`.
    #[must_use]
    pub fn traffic_token(&self) -> Option<&str> {
        self.answered
            .traffic_access_token
            .as_ref()
            .map(Secret::reveal)
    }

    /// The name under which a port of it is reached from outside.
    #[must_use]
    pub fn host(&self, port: u16) -> String {
        let endpoint = self.client.rest().endpoint();
        endpoint.host(self.id(), port, self.answered.domain.as_deref())
    }

    /// The client below [`Self::commands`] and [`Self::files`].
    #[must_use]
    pub fn guest(&self) -> &GuestClient {
        &self.guest
    }

    /// Commands and terminals.
    #[must_use]
    pub fn commands(&self) -> Commands<'_> {
        Commands::new(&self.guest)
    }

    /// Files and directories.
    #[must_use]
    pub fn files(&self) -> Files<'_> {
        Files::new(&self.guest)
    }

    /// Code that keeps its state: contexts, and events while it runs.
    #[must_use]
    pub fn code(&self) -> CodeInterpreter<'_> {
        CodeInterpreter::new(&self.code)
    }

    /// The client below [`Self::code`].
    #[must_use]
    pub fn code_guest(&self) -> &GuestClient {
        &self.code
    }

    /// Runs code to its end; without options, Python in the context that all
    /// such code shares.
    ///
    /// # Errors
    /// When it cannot be run, runs too long or shows too much. Code that fails
    /// by itself is an [`Execution`] with an error.
    pub async fn run_code(
        &self,
        code: &str,
        options: &CodeOptions,
    ) -> Result<Execution, RunCodeError> {
        self.code().run(code, options, |_| {}).await
    }

    /// What the server knows about it.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when it has ended.
    pub async fn info(&self) -> Result<SandboxDetail, ClientError> {
        self.client.get(self.id()).await
    }

    /// Lets it end after `timeout` from now.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when it has ended.
    pub async fn set_timeout(&self, timeout: Duration) -> Result<(), ClientError> {
        self.client.set_timeout(self.id(), timeout).await
    }

    /// Lets it hold still until [`Client::connect`] wakes it up.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when it has ended.
    pub async fn pause(&self) -> Result<(), ClientError> {
        self.client.pause(self.id()).await
    }

    /// Makes a template of what it has on its disk right now; see
    /// [`Client::create_snapshot`].
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when it has ended.
    pub async fn snapshot(&self, name: Option<&str>) -> Result<SnapshotInfo, ClientError> {
        self.client.create_snapshot(self.id(), name).await
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`ClientError::NotFound`] when it has ended.
    pub async fn kill(&self) -> Result<(), ClientError> {
        self.client.kill(self.id()).await
    }
}
