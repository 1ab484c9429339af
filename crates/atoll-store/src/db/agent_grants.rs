//! Agents that may use what belongs to another agent of the same tenant.

use super::{Database, DatabaseError, Fence, TenantId, read, transaction, write};

/// What an agent can be let into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantedObject<'a> {
    /// A session, and with it every sandbox that it has or will have.
    Session(&'a str),
    /// One sandbox.
    Sandbox(&'a str),
}

impl<'a> GrantedObject<'a> {
    const fn kind(self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Sandbox(_) => "sandbox",
        }
    }

    const fn id(self) -> &'a str {
        match self {
            Self::Session(id) | Self::Sandbox(id) => id,
        }
    }
}

impl Database {
    /// Lets an agent in, unless `agents_max` others are; whether it is now.
    /// Doing so twice is doing so once.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn grant_to_agent(
        &self,
        fence: &Fence,
        tenant: TenantId,
        object: GrantedObject<'_>,
        agent: &str,
        now_ms: i64,
        agents_max: usize,
    ) -> Result<bool, DatabaseError> {
        let agents_max = i64::try_from(agents_max).unwrap_or(i64::MAX);
        Ok(transaction!(self, |transaction| 'granted: {
            let others: i64 = sqlx::query_scalar(
                "SELECT COUNT(*) FROM agent_grants
                 WHERE tenant_id = $1 AND kind = $2 AND object_id = $3 AND agent_id <> $4",
            )
            .bind(tenant.to_string())
            .bind(object.kind())
            .bind(object.id())
            .bind(agent)
            .fetch_one(&mut *transaction)
            .await?;
            if others >= agents_max {
                break 'granted false;
            }
            sqlx::query(
                "INSERT INTO agent_grants
                   (tenant_id, kind, object_id, agent_id, created_at_ms, node_id, epoch)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)
                 ON CONFLICT (tenant_id, kind, object_id, agent_id) DO NOTHING",
            )
            .bind(tenant.to_string())
            .bind(object.kind())
            .bind(object.id())
            .bind(agent)
            .bind(now_ms)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .execute(&mut *transaction)
            .await?;
            true
        }))
    }

    /// Lets an agent in no more; whether it was.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn revoke_from_agent(
        &self,
        tenant: TenantId,
        object: GrantedObject<'_>,
        agent: &str,
    ) -> Result<bool, DatabaseError> {
        let gone = write!(self, |pool| sqlx::query(
            "DELETE FROM agent_grants
             WHERE tenant_id = $1 AND kind = $2 AND object_id = $3 AND agent_id = $4"
        )
        .bind(tenant.to_string())
        .bind(object.kind())
        .bind(object.id())
        .bind(agent)
        .execute(pool)
        .await?
        .rows_affected());
        Ok(gone > 0)
    }

    /// The agents that were let in, in the order of their names.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn agents_let_into(
        &self,
        tenant: TenantId,
        object: GrantedObject<'_>,
    ) -> Result<Vec<String>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_scalar(
            "SELECT agent_id FROM agent_grants
             WHERE tenant_id = $1 AND kind = $2 AND object_id = $3 ORDER BY agent_id"
        )
        .bind(tenant.to_string())
        .bind(object.kind())
        .bind(object.id())
        .fetch_all(pool)
        .await?))
    }
}
