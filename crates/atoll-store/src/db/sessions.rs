//! Sessions: an agent's way to a sandbox that may be another one tomorrow.

use super::{
    Database, DatabaseError, Fence, KeyId, Metadata, SessionId, TenantId, read, transaction, write,
};

/// Everything that is stored of a session.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Session {
    /// Its id.
    #[sqlx(try_from = "String")]
    pub session_id: SessionId,
    /// Whose it is.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
    /// The key that made it.
    #[sqlx(try_from = "String")]
    pub key_id: KeyId,
    /// The agent it was made for.
    pub agent_id: String,
    /// The task of that agent.
    pub task_id: Option<String>,
    /// The user that the agent works for.
    pub user_id: Option<String>,
    /// What its sandboxes are made from.
    pub template: String,
    /// What its owner wrote on it.
    #[sqlx(try_from = "String")]
    pub metadata: Metadata,
    /// JSON: what its sandboxes may reach.
    pub network: String,
    /// JSON: what its sandboxes may use.
    pub limits: String,
    /// Environment variables of its sandboxes, encrypted.
    pub sealed: String,
    /// The sandbox that it has now.
    pub sandbox_id: Option<String>,
    /// How many it has had.
    pub generation: i64,
    /// How long nobody may use it before it ends.
    pub idle_ms: i64,
    /// When it was made.
    pub created_at_ms: i64,
    /// When it was used last, to within a minute.
    pub last_used_at_ms: i64,
    /// When it ends, used or not.
    pub expires_at_ms: i64,
    /// When it ended.
    pub ended_at_ms: Option<i64>,
    /// Why it ended, in one word.
    pub end_reason: Option<String>,
}

/// What became of a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// It is stored.
    New,
    /// The agent has one for this task.
    Earlier(Box<Session>),
    /// The agent has as many as it may.
    TooMany,
    /// A later start of the server is in charge.
    Fenced,
}

/// The sandbox and the last use of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionUse<'a> {
    /// The sandbox that it has now.
    pub sandbox_id: Option<&'a str>,
    /// How many it has had.
    pub generation: i64,
    /// When it was used last.
    pub last_used_at_ms: i64,
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionEnd<'a> {
    /// When.
    pub at_ms: i64,
    /// In one word.
    pub reason: &'a str,
}

/// A place in a list of sessions: when the last one was made, and its id.
pub type SessionPlace = (i64, String);

/// What to list, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// Only those of this agent.
    pub agent_id: Option<String>,
    /// Only those of this task.
    pub task_id: Option<String>,
    /// Only those that can be used (`true`), or only those that ended (`false`).
    pub is_active: Option<bool>,
    /// How many at most.
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<SessionPlace>,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPage {
    /// In order.
    pub sessions: Vec<Session>,
    /// Where to go on; none on the last page.
    pub next: Option<SessionPlace>,
}

impl Database {
    /// Stores a session, unless its agent has one for the same task, or
    /// `agent_max` of them.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn insert_session(
        &self,
        fence: &Fence,
        new: &Session,
        agent_max: usize,
    ) -> Result<Admitted, DatabaseError> {
        let tenant = new.tenant_id.to_string();
        let agent_max = i64::try_from(agent_max).unwrap_or(i64::MAX);
        Ok(transaction!(self, |transaction| 'admitted: {
            if new.task_id.is_some() {
                let earlier: Option<Session> = sqlx::query_as(
                    "SELECT * FROM sessions WHERE tenant_id = $1 AND agent_id = $2
                       AND task_id = $3 AND ended_at_ms IS NULL",
                )
                .bind(&tenant)
                .bind(&new.agent_id)
                .bind(&new.task_id)
                .fetch_optional(&mut *transaction)
                .await?;
                if let Some(earlier) = earlier {
                    break 'admitted Admitted::Earlier(Box::new(earlier));
                }
            }
            let count: i64 = sqlx::query_scalar(
                "SELECT COUNT(*) FROM sessions
                 WHERE tenant_id = $1 AND agent_id = $2 AND ended_at_ms IS NULL",
            )
            .bind(&tenant)
            .bind(&new.agent_id)
            .fetch_one(&mut *transaction)
            .await?;
            if count >= agent_max {
                break 'admitted Admitted::TooMany;
            }
            let inserted = sqlx::query(
                "INSERT INTO sessions (session_id, tenant_id, key_id, agent_id, task_id, user_id,
                   template, metadata, network, sealed, sandbox_id, generation, idle_ms,
                   created_at_ms, last_used_at_ms, expires_at_ms, limits, node_id, epoch)
                 SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                   $17, node_id, epoch
                 FROM nodes WHERE node_id = $18 AND epoch = $19",
            )
            .bind(new.session_id.to_string())
            .bind(&tenant)
            .bind(new.key_id.to_string())
            .bind(&new.agent_id)
            .bind(&new.task_id)
            .bind(&new.user_id)
            .bind(&new.template)
            .bind(new.metadata.to_text())
            .bind(&new.network)
            .bind(&new.sealed)
            .bind(&new.sandbox_id)
            .bind(new.generation)
            .bind(new.idle_ms)
            .bind(new.created_at_ms)
            .bind(new.last_used_at_ms)
            .bind(new.expires_at_ms)
            .bind(&new.limits)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .execute(&mut *transaction)
            .await?;
            if inserted.rows_affected() == 0 {
                break 'admitted Admitted::Fenced;
            }
            Admitted::New
        }))
    }

    /// A session of `tenant`, also one that ended.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn session(
        &self,
        tenant: TenantId,
        session: SessionId,
    ) -> Result<Option<Session>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM sessions WHERE session_id = $1 AND tenant_id = $2"
        )
        .bind(session.to_string())
        .bind(tenant.to_string())
        .fetch_optional(pool)
        .await?))
    }

    /// All sessions of this node that can be used.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn active_sessions(&self) -> Result<Vec<Session>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM sessions WHERE node_id = $1 AND ended_at_ms IS NULL
             ORDER BY created_at_ms, session_id"
        )
        .bind(self.node().as_str())
        .fetch_all(pool)
        .await?))
    }

    /// A page of the sessions of a tenant.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list_sessions(
        &self,
        tenant: TenantId,
        query: &SessionQuery,
    ) -> Result<SessionPage, DatabaseError> {
        let (at_ms, id) = query.after.clone().unwrap_or((i64::MAX, String::new()));
        let limit = query.limit.max(1);
        let wanted = query.is_active.map(i64::from);
        let mut sessions: Vec<Session> = read!(self, |pool| sqlx::query_as(
            "SELECT * FROM sessions
             WHERE tenant_id = $1
               AND ($2 IS NULL OR agent_id = $2)
               AND ($3 IS NULL OR task_id = $3)
               AND ($4 IS NULL OR (ended_at_ms IS NULL AND $4 = 1)
                               OR (ended_at_ms IS NOT NULL AND $4 = 0))
               AND (created_at_ms < $5 OR (created_at_ms = $5 AND session_id < $6))
             ORDER BY created_at_ms DESC, session_id DESC LIMIT $7"
        )
        .bind(tenant.to_string())
        .bind(&query.agent_id)
        .bind(&query.task_id)
        .bind(wanted)
        .bind(at_ms)
        .bind(&id)
        .bind(i64::try_from(limit + 1).unwrap_or(i64::MAX))
        .fetch_all(pool)
        .await?);
        let has_more = sessions.len() > limit;
        sessions.truncate(limit);
        let last = sessions.last().filter(|_| has_more);
        let next = last.map(|last| (last.created_at_ms, last.session_id.to_string()));
        Ok(SessionPage { sessions, next })
    }

    /// Stores which sandbox a session has, and when it was used; whether it
    /// was there to be changed.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn note_session_use(
        &self,
        fence: &Fence,
        session: SessionId,
        now: SessionUse<'_>,
    ) -> Result<bool, DatabaseError> {
        let changed = write!(self, |pool| {
            sqlx::query(
            "UPDATE sessions SET sandbox_id = $2, generation = $3, last_used_at_ms = $4, epoch = $6
             WHERE session_id = $1 AND node_id = $5 AND ended_at_ms IS NULL
               AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $5 AND epoch = $6)"
        )
        .bind(session.to_string())
        .bind(now.sandbox_id)
        .bind(now.generation)
        .bind(now.last_used_at_ms)
        .bind(fence.node.as_str())
        .bind(fence.epoch)
        .execute(pool)
        .await?
        .rows_affected()
        });
        Ok(changed > 0)
    }

    /// Ends a session, and forgets its secrets; whether it had not ended before.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn end_session(
        &self,
        fence: &Fence,
        session: SessionId,
        end: SessionEnd<'_>,
    ) -> Result<bool, DatabaseError> {
        let changed = write!(self, |pool| sqlx::query(
            "UPDATE sessions SET ended_at_ms = $2, end_reason = $3, sealed = '', epoch = $5
             WHERE session_id = $1 AND node_id = $4 AND ended_at_ms IS NULL
               AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $4 AND epoch = $5)"
        )
        .bind(session.to_string())
        .bind(end.at_ms)
        .bind(end.reason)
        .bind(fence.node.as_str())
        .bind(fence.epoch)
        .execute(pool)
        .await?
        .rows_affected());
        Ok(changed > 0)
    }

    /// Deletes sessions that ended before `before_ms`, and of each tenant those
    /// that ended first where more than `per_tenant` have; with them what was granted
    /// of them, and of sandboxes that are gone. How many sessions that were.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn forget_sessions(
        &self,
        before_ms: i64,
        per_tenant: usize,
    ) -> Result<u64, DatabaseError> {
        let kept = i64::try_from(per_tenant).unwrap_or(i64::MAX);
        Ok(transaction!(self, |transaction| {
            let mut sessions = sqlx::query("DELETE FROM sessions WHERE ended_at_ms < $1")
                .bind(before_ms)
                .execute(&mut *transaction)
                .await?
                .rows_affected();
            let crowded: Vec<String> = sqlx::query_scalar(
                "SELECT tenant_id FROM sessions WHERE ended_at_ms IS NOT NULL
                 GROUP BY tenant_id HAVING COUNT(*) > $1",
            )
            .bind(kept)
            .fetch_all(&mut *transaction)
            .await?;
            for tenant in crowded {
                sessions += sqlx::query(
                    "DELETE FROM sessions WHERE session_id IN
                       (SELECT session_id FROM sessions
                        WHERE tenant_id = $1 AND ended_at_ms IS NOT NULL
                        ORDER BY ended_at_ms DESC, session_id DESC LIMIT $3 OFFSET $2)",
                )
                .bind(tenant)
                .bind(kept)
                .bind(i64::MAX)
                .execute(&mut *transaction)
                .await?
                .rows_affected();
            }
            sqlx::query(
                "DELETE FROM agent_grants
                 WHERE (kind = 'session' AND object_id NOT IN (SELECT session_id FROM sessions))
                    OR (kind = 'sandbox' AND object_id NOT IN (SELECT sandbox_id FROM sandboxes))",
            )
            .execute(&mut *transaction)
            .await?;
            sessions
        }))
    }
}
