//! How sandboxes ended, readable after they are gone, for a while.

use super::events::insert_events;
use super::{
    ChangeError, Database, DatabaseError, Expected, Fence, KeyId, Metadata, NewEvent, Sandbox,
    TenantId, read, transaction,
};

/// What stays of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Tombstone {
    /// Its id.
    pub sandbox_id: String,
    /// Whose it was.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
    /// The key that made it.
    #[sqlx(try_from = "String")]
    pub key_id: KeyId,
    /// What it was made from.
    pub template_id: String,
    /// The template as it was asked for.
    pub template_name: String,
    /// What its owner wrote on it.
    #[sqlx(try_from = "String")]
    pub metadata: Metadata,
    /// The agent it worked for.
    pub agent_id: Option<String>,
    /// The task it worked on.
    pub task_id: Option<String>,
    /// When its creation was asked for.
    pub created_at_ms: i64,
    /// When it began to run.
    pub started_at_ms: i64,
    /// When it ended.
    pub ended_at_ms: i64,
    /// JSON: how it ended.
    pub outcome: String,
}

/// Which sandboxes that ended to list, the last to end first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TombstoneQuery {
    /// Only those of this agent.
    pub agent_id: Option<String>,
    /// Only those of this task.
    pub task_id: Option<String>,
    /// How many at most.
    pub limit: usize,
    /// The end and the id of the last one of the page before.
    pub after: Option<(i64, String)>,
}

/// What was deleted because of its age.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Tombstones, with logs and samples of their sandboxes.
    pub tombstones: u64,
    /// Idempotency keys.
    pub idempotency_keys: u64,
}

impl Database {
    /// Ends a sandbox that is still as `expected`: its row and its tokens go,
    /// its tombstone comes, and what is told of it, all or nothing.
    ///
    /// # Errors
    /// [`Lost`](super::Lost) if it is not, or when `fence` is not the newest of its node.
    pub async fn bury_sandbox(
        &self,
        fence: &Fence,
        sandbox: &str,
        expected: Expected,
        ended_at_ms: i64,
        outcome: &str,
        events: &[NewEvent],
    ) -> Result<Tombstone, ChangeError> {
        let buried: Option<Tombstone> = transaction!(self, |transaction| {
            let row: Option<Sandbox> = sqlx::query_as(
                "DELETE FROM sandboxes
                 WHERE sandbox_id = $1 AND node_id = $2 AND state = $4 AND version = $5
                   AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $2 AND epoch = $3)
                 RETURNING *",
            )
            .bind(sandbox)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .bind(expected.state.as_str())
            .bind(expected.version)
            .fetch_optional(&mut *transaction)
            .await?;
            match row {
                None => None,
                Some(row) => {
                    sqlx::query("DELETE FROM envd_tokens WHERE sandbox_id = $1")
                        .bind(sandbox)
                        .execute(&mut *transaction)
                        .await?;
                    let tombstone = sqlx::query_as(
                        "INSERT INTO tombstones (sandbox_id, tenant_id, key_id, template_id,
                           template_name, metadata, agent_id, task_id, created_at_ms,
                           started_at_ms, ended_at_ms, outcome, node_id, epoch)
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
                         RETURNING *",
                    )
                    .bind(&row.sandbox_id)
                    .bind(row.tenant_id.to_string())
                    .bind(row.key_id.to_string())
                    .bind(&row.template_id)
                    .bind(&row.template_name)
                    .bind(row.metadata.to_text())
                    .bind(&row.agent_id)
                    .bind(&row.task_id)
                    .bind(row.created_at_ms)
                    .bind(row.started_at_ms)
                    .bind(ended_at_ms)
                    .bind(outcome)
                    .bind(fence.node.as_str())
                    .bind(fence.epoch)
                    .fetch_one(&mut *transaction)
                    .await?;
                    let tenant = row.tenant_id.to_string();
                    insert_events!(transaction, fence, &tenant, events);
                    Some(tombstone)
                }
            }
        });
        match buried {
            Some(tombstone) => {
                if !events.is_empty() {
                    self.event_bell.ring();
                }
                Ok(tombstone)
            }
            None => Err(self.loss(fence, sandbox).await?.into()),
        }
    }

    /// How a sandbox of `tenant` ended.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn tombstone(
        &self,
        tenant: TenantId,
        sandbox: &str,
    ) -> Result<Option<Tombstone>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM tombstones WHERE sandbox_id = $1 AND tenant_id = $2"
        )
        .bind(sandbox)
        .bind(tenant.to_string())
        .fetch_optional(pool)
        .await?))
    }

    /// Sandboxes of `tenant` that ended. One more than asked for shows that
    /// there is another page.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list_tombstones(
        &self,
        tenant: TenantId,
        query: &TombstoneQuery,
    ) -> Result<Vec<Tombstone>, DatabaseError> {
        let (at_ms, id) = query.after.clone().unwrap_or((i64::MAX, String::new()));
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM tombstones
             WHERE tenant_id = $1
               AND ($2 IS NULL OR agent_id = $2)
               AND ($3 IS NULL OR task_id = $3)
               AND (ended_at_ms < $4 OR (ended_at_ms = $4 AND sandbox_id < $5))
             ORDER BY ended_at_ms DESC, sandbox_id DESC LIMIT $6"
        )
        .bind(tenant.to_string())
        .bind(&query.agent_id)
        .bind(&query.task_id)
        .bind(at_ms)
        .bind(&id)
        .bind(i64::try_from(query.limit + 1).unwrap_or(i64::MAX))
        .fetch_all(pool)
        .await?))
    }

    /// Deletes what ended, and idempotency keys that were used, before `before_ms`.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn forget(&self, before_ms: i64) -> Result<Forgotten, DatabaseError> {
        Ok(transaction!(self, |transaction| {
            for statement in [
                "DELETE FROM sandbox_logs WHERE sandbox_id IN
                   (SELECT sandbox_id FROM tombstones WHERE ended_at_ms < $1)",
                "DELETE FROM metric_samples WHERE sandbox_id IN
                   (SELECT sandbox_id FROM tombstones WHERE ended_at_ms < $1)",
            ] {
                sqlx::query(statement)
                    .bind(before_ms)
                    .execute(&mut *transaction)
                    .await?;
            }
            let tombstones = sqlx::query("DELETE FROM tombstones WHERE ended_at_ms < $1")
                .bind(before_ms)
                .execute(&mut *transaction)
                .await?
                .rows_affected();
            let idempotency_keys =
                sqlx::query("DELETE FROM idempotency_keys WHERE created_at_ms < $1")
                    .bind(before_ms)
                    .execute(&mut *transaction)
                    .await?
                    .rows_affected();
            Forgotten {
                tombstones,
                idempotency_keys,
            }
        }))
    }
}
