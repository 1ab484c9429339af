//! The sandbox that something is done in, and whether the caller may.
//!
//! Tenants are walled off from each other: a foreign sandbox is a missing
//! one. Agents of one tenant share its key; what belongs to one of them is
//! refused to another that says who it is, unless it was let in.

use std::sync::Arc;

use atoll_store::db::{Database, DatabaseError, GrantedObject, Sandbox, SandboxState, SessionId};

use super::Executions;
use crate::identity::{Caller, LookupError, Role, now_ms};
use crate::lifecycle::Lifecycle;
use crate::running::{Running, RunningSandboxes};

/// Agents that are let into a sandbox or a session, at most.
pub(crate) const AGENTS_MAX: usize = 100;

/// A sandbox that takes commands, and what is known of it.
#[derive(Clone)]
pub struct Place {
    /// The sandbox.
    pub sandbox: Arc<Running>,
    /// What it was made from.
    pub template_id: String,
    /// The task it works on.
    pub task_id: Option<String>,
    /// The session that it is the sandbox of, if it was found by that.
    pub session: Option<SessionId>,
}

/// Why there is no place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is no such sandbox that is the caller's.
    #[error("there is no such sandbox")]
    NotFound,
    /// It belongs to another agent.
    #[error("it belongs to another agent, which did not let this one in")]
    OtherAgent,
    /// It is paused, and nobody said that it may be woken up.
    #[error("the sandbox is paused")]
    Paused,
    /// It is on its way in or out.
    #[error("the sandbox is not ready, or ends")]
    Unready,
    /// As many agents as may be were let in.
    #[error("{AGENTS_MAX} agents were let in, which is the most there may be")]
    TooManyAgents,
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Finds sandboxes. Clones are the same.
#[derive(Clone)]
pub struct Places {
    lifecycle: Lifecycle,
    running: Arc<RunningSandboxes>,
    executions: Executions,
}

impl Places {
    pub(super) fn new(
        lifecycle: Lifecycle,
        running: Arc<RunningSandboxes>,
        executions: Executions,
    ) -> Self {
        Self {
            lifecycle,
            running,
            executions,
        }
    }

    fn database(&self) -> &Database {
        &self.executions.shared.database
    }

    /// Whether something runs in a sandbox that ends by itself.
    pub(crate) fn is_busy(&self, sandbox: &str) -> bool {
        self.executions.is_busy(sandbox)
    }

    /// What makes and ends sandboxes.
    #[must_use]
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    pub(crate) fn running(&self) -> &RunningSandboxes {
        &self.running
    }

    /// What is stored of a sandbox that `caller` may use.
    ///
    /// # Errors
    /// When there is none.
    pub async fn row(&self, caller: &Caller, id: &str) -> Result<Sandbox, PlaceError> {
        let row = match caller.sandbox(self.database(), id).await {
            Ok(row) => row,
            Err(LookupError::NotFound) => return Err(PlaceError::NotFound),
            Err(LookupError::Database(error)) => return Err(error.into()),
        };
        let object = GrantedObject::Sandbox(&row.sandbox_id);
        if may_use(self.database(), caller, row.agent_id.as_deref(), object).await? {
            Ok(row)
        } else {
            Err(PlaceError::OtherAgent)
        }
    }

    /// A sandbox that `caller` may use, and that takes commands now.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find(&self, caller: &Caller, id: &str) -> Result<Place, PlaceError> {
        let row = self.row(caller, id).await?;
        let sandbox = match row.state {
            SandboxState::Running | SandboxState::Resuming => {
                self.running.reached(&row.sandbox_id).await
            }
            // To wake it up is to change it.
            SandboxState::Pausing | SandboxState::Paused if caller.role == Role::Viewer => {
                return Err(PlaceError::Paused);
            }
            SandboxState::Pausing | SandboxState::Paused => {
                let asleep = self.running.asleep(&row.sandbox_id);
                let asleep = asleep.ok_or(PlaceError::Paused)?;
                asleep.wake().await.then_some(asleep.sandbox)
            }
            SandboxState::Creating | SandboxState::Killing => None,
        };
        Ok(Place {
            sandbox: sandbox.ok_or(PlaceError::Unready)?,
            template_id: row.template_id,
            task_id: row.task_id,
            session: None,
        })
    }

    /// Lets another agent use a sandbox that `caller` may use.
    ///
    /// # Errors
    /// When there is none.
    pub async fn let_in(&self, caller: &Caller, id: &str, agent: &str) -> Result<(), PlaceError> {
        let row = self.own_row(caller, id).await?;
        let object = GrantedObject::Sandbox(&row.sandbox_id);
        let fence = &self.executions.shared.fence;
        let granted = self
            .database()
            .grant_to_agent(fence, caller.tenant, object, agent, now_ms(), AGENTS_MAX)
            .await?;
        if granted {
            Ok(())
        } else {
            Err(PlaceError::TooManyAgents)
        }
    }

    /// Takes that back.
    ///
    /// # Errors
    /// When there is no such sandbox, or the agent was not let in.
    pub async fn shut_out(&self, caller: &Caller, id: &str, agent: &str) -> Result<(), PlaceError> {
        let row = self.own_row(caller, id).await?;
        let object = GrantedObject::Sandbox(&row.sandbox_id);
        let revoking = self
            .database()
            .revoke_from_agent(caller.tenant, object, agent);
        if revoking.await? {
            Ok(())
        } else {
            Err(PlaceError::NotFound)
        }
    }

    /// A sandbox of the caller's own: who was let in neither lets others in
    /// nor ends it.
    ///
    /// # Errors
    /// When there is none.
    pub async fn own_row(&self, caller: &Caller, id: &str) -> Result<Sandbox, PlaceError> {
        let row = self.row(caller, id).await?;
        if is_own(caller, row.agent_id.as_deref()) {
            Ok(row)
        } else {
            Err(PlaceError::OtherAgent)
        }
    }
}

/// Whether something of `owner` is the caller's own. A caller that names no
/// agent acts for the whole tenant.
pub(crate) fn is_own(caller: &Caller, owner: Option<&str>) -> bool {
    match (caller.agent_id.as_deref(), owner) {
        (None, _) | (_, None) => true,
        (Some(agent), Some(owner)) => agent == owner,
    }
}

/// Whether `caller` may use something that belongs to the agent `owner`.
///
/// # Errors
/// When the database cannot be read.
pub async fn may_use(
    database: &Database,
    caller: &Caller,
    owner: Option<&str>,
    object: GrantedObject<'_>,
) -> Result<bool, DatabaseError> {
    if is_own(caller, owner) {
        return Ok(true);
    }
    let agents = database.agents_let_into(caller.tenant, object).await?;
    Ok(agents
        .iter()
        .any(|agent| Some(agent.as_str()) == caller.agent_id.as_deref()))
}
