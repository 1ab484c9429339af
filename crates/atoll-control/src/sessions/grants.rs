//! Which other agents may use a session.

use atoll_store::db::{GrantedObject, SessionId};

use super::{SessionError, Sessions};
use crate::executions::{AGENTS_MAX, is_own};
use crate::identity::{Caller, now_ms};

impl Sessions {
    /// Lets another agent use a session of the caller's own.
    ///
    /// # Errors
    /// When there is none.
    pub async fn let_in(
        &self,
        caller: &Caller,
        id: SessionId,
        agent: &str,
    ) -> Result<(), SessionError> {
        self.own(caller, id).await?;
        let (shared, text) = (&self.shared, id.to_string());
        let object = GrantedObject::Session(&text);
        let (fence, tenant) = (&shared.fence, caller.tenant);
        let granted = shared
            .database
            .grant_to_agent(fence, tenant, object, agent, now_ms(), AGENTS_MAX)
            .await?;
        if granted {
            Ok(())
        } else {
            Err(SessionError::TooManyAgents)
        }
    }

    /// Takes that back.
    ///
    /// # Errors
    /// When there is no such session, or the agent was not let in.
    pub async fn shut_out(
        &self,
        caller: &Caller,
        id: SessionId,
        agent: &str,
    ) -> Result<(), SessionError> {
        self.own(caller, id).await?;
        let text = id.to_string();
        let object = GrantedObject::Session(&text);
        let database = &self.shared.database;
        if database
            .revoke_from_agent(caller.tenant, object, agent)
            .await?
        {
            Ok(())
        } else {
            Err(SessionError::NotFound)
        }
    }

    /// The agents that may use a session besides its own.
    ///
    /// # Errors
    /// When there is none.
    pub async fn agents(
        &self,
        caller: &Caller,
        id: SessionId,
    ) -> Result<Vec<String>, SessionError> {
        self.get(caller, id).await?;
        let text = id.to_string();
        let object = GrantedObject::Session(&text);
        Ok(self
            .shared
            .database
            .agents_let_into(caller.tenant, object)
            .await?)
    }

    /// Who was let in lets nobody in.
    async fn own(&self, caller: &Caller, id: SessionId) -> Result<(), SessionError> {
        let row = self.get(caller, id).await?;
        if is_own(caller, Some(&row.agent_id)) {
            Ok(())
        } else {
            Err(SessionError::OtherAgent)
        }
    }
}
