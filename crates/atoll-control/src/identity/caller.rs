//! The one who asks. Every question about a sandbox is asked in the name of a
//! caller, and finds what belongs to the caller's tenant.

use atoll_engine::SandboxId;
use atoll_store::db::{Database, DatabaseError, KeyId, Sandbox, TenantId};

use super::Role;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// To whom everything belongs that the caller sees.
    pub tenant: TenantId,
    /// The key it came with.
    pub key: KeyId,
    /// What that key may do.
    pub role: Role,
    /// The agent it says it acts for.
    pub agent_id: Option<String>,
    /// The task it says it works on.
    pub task_id: Option<String>,
}

/// Why a caller gets no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is none of that name, or it is somebody else's: nobody can tell.
    #[error("there is no such sandbox")]
    NotFound,
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Caller {
    /// The same caller on behalf of an agent and a task.
    #[must_use]
    pub fn on_behalf_of(mut self, agent_id: Option<String>, task_id: Option<String>) -> Self {
        self.agent_id = agent_id;
        self.task_id = task_id;
        self
    }

    /// The live sandbox that `id` names, if it is the caller's. An id that is
    /// none names nothing.
    ///
    /// # Errors
    /// The same for a foreign sandbox, a missing one and a text that is no id.
    pub async fn sandbox(&self, database: &Database, id: &str) -> Result<Sandbox, LookupError> {
        let id: SandboxId = id.parse().map_err(|_| LookupError::NotFound)?;
        let found = database.sandbox(self.tenant, id.as_str()).await?;
        found.ok_or(LookupError::NotFound)
    }
}
