//! The history of executions: what was run, where, for whom, and how it ended.
//! A row is written when an execution begins, and again when it ends.

use std::fmt;

use super::{
    Database, DatabaseError, ExecutionId, Fence, KeyId, TenantId, read, transaction, write,
};

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecutionStatus {
    /// It runs.
    Running,
    /// It came to its end, as whoever wrote it meant it.
    Succeeded,
    /// It came to its end with an error, or a limit ended it.
    Failed,
    /// Somebody ended it.
    Cancelled,
    /// The server ended while it ran; what became of it is not known.
    Interrupted,
}

impl ExecutionStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// In one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// The one that `word` names.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

impl fmt::Display for ExecutionStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl TryFrom<String> for ExecutionStatus {
    type Error = DatabaseError;

    fn try_from(word: String) -> Result<Self, DatabaseError> {
        Self::parse(&word).ok_or(DatabaseError::Content {
            what: "status of an execution",
            found: word,
        })
    }
}

/// Everything that is stored of an execution.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Execution {
    /// Its id.
    #[sqlx(try_from = "String")]
    pub execution_id: ExecutionId,
    /// Whose it is.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
    /// The key that asked for it.
    #[sqlx(try_from = "String")]
    pub key_id: KeyId,
    /// The agent that asked for it.
    pub agent_id: Option<String>,
    /// The task it is part of.
    pub task_id: Option<String>,
    /// The session it was asked for in.
    pub session_id: Option<String>,
    /// Where it ran.
    pub sandbox_id: String,
    /// What that was made from.
    pub template_id: String,
    /// How that was kept apart.
    pub tier: String,
    /// Code, command, process or packages.
    pub kind: String,
    /// Of the code.
    pub language: Option<String>,
    /// Of the code or command, which is not kept.
    pub digest: String,
    /// Its length.
    pub code_bytes: i64,
    /// Where it stands.
    #[sqlx(try_from = "String")]
    pub status: ExecutionStatus,
    /// How it ended, in one word.
    pub outcome: Option<String>,
    /// Of a command.
    pub exit_code: Option<i64>,
    /// JSON: what it said, cut.
    pub report: String,
    /// Bytes of its standard output, kept or not.
    pub stdout_bytes: i64,
    /// Bytes of its standard error, kept or not.
    pub stderr_bytes: i64,
    /// When it was asked for.
    pub created_at_ms: i64,
    /// When it ended.
    pub ended_at_ms: Option<i64>,
    /// How long it took.
    pub duration_ms: Option<i64>,
    /// CPU time that its sandbox used meanwhile.
    pub cpu_usec: Option<i64>,
    /// Most memory that its sandbox had used by then.
    pub memory_peak_bytes: Option<i64>,
}

/// An execution as it is read: with what became of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct StoredExecution {
    /// What was written.
    #[sqlx(flatten)]
    pub execution: Execution,
    /// Whether its sandbox still is.
    sandboxes: i64,
    /// When it ended, while that is known.
    pub sandbox_ended_at_ms: Option<i64>,
}

impl StoredExecution {
    /// Whether its sandbox is gone.
    #[must_use]
    pub const fn is_sandbox_destroyed(&self) -> bool {
        self.sandboxes == 0
    }
}

/// A place in the history: when the last execution was asked for, and its id.
pub type ExecutionPlace = (i64, String);

/// What to list, the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecutionQuery {
    /// Only those of this agent.
    pub agent_id: Option<String>,
    /// Only those of this task.
    pub task_id: Option<String>,
    /// Only those of this session.
    pub session_id: Option<String>,
    /// Only those in this sandbox.
    pub sandbox_id: Option<String>,
    /// Only those that stand there.
    pub status: Option<ExecutionStatus>,
    /// Only those that were asked for then or later.
    pub from_ms: Option<i64>,
    /// Only those that were asked for before then.
    pub to_ms: Option<i64>,
    /// How many at most.
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<ExecutionPlace>,
}

/// A part of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionPage {
    /// In order.
    pub executions: Vec<StoredExecution>,
    /// Where to go on; none on the last page.
    pub next: Option<ExecutionPlace>,
}

/// What all executions of one agent took.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ExecutionUsage {
    /// The agent; those that named none are together.
    pub agent_id: Option<String>,
    /// How many there were.
    pub executions: i64,
    /// How many of them failed.
    pub failed: i64,
    /// How long they took, together.
    pub duration_ms: i64,
    /// CPU time that they used, together.
    pub cpu_usec: i64,
}

/// What of the history is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Executions that were asked for before this moment go.
    pub before_ms: i64,
    /// Of each tenant, only this many stay.
    pub per_tenant: usize,
}

const READ: &str = "SELECT executions.*,
       (SELECT COUNT(*) FROM sandboxes
        WHERE sandboxes.sandbox_id = executions.sandbox_id) AS sandboxes,
       (SELECT tombstones.ended_at_ms FROM tombstones
        WHERE tombstones.sandbox_id = executions.sandbox_id) AS sandbox_ended_at_ms
     FROM executions WHERE execution_id = $1 AND tenant_id = $2";

const LIST: &str = "SELECT executions.*,
       (SELECT COUNT(*) FROM sandboxes
        WHERE sandboxes.sandbox_id = executions.sandbox_id) AS sandboxes,
       (SELECT tombstones.ended_at_ms FROM tombstones
        WHERE tombstones.sandbox_id = executions.sandbox_id) AS sandbox_ended_at_ms
     FROM executions
     WHERE tenant_id = $1
       AND ($2 IS NULL OR agent_id = $2)
       AND ($3 IS NULL OR task_id = $3)
       AND ($4 IS NULL OR session_id = $4)
       AND ($5 IS NULL OR sandbox_id = $5)
       AND ($6 IS NULL OR status = $6)
       AND created_at_ms >= $7 AND created_at_ms < $8
       AND (created_at_ms < $9 OR (created_at_ms = $9 AND execution_id < $10))
     ORDER BY created_at_ms DESC, execution_id DESC LIMIT $11";

impl Database {
    /// Stores executions as they stand, in one commit.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn record_executions(
        &self,
        fence: &Fence,
        executions: &[Execution],
    ) -> Result<(), DatabaseError> {
        transaction!(self, |transaction| {
            for one in executions {
                sqlx::query(
                    "INSERT INTO executions (execution_id, tenant_id, key_id, agent_id, task_id,
                       session_id, sandbox_id, template_id, tier, kind, language, digest,
                       code_bytes, status, outcome, exit_code, report, stdout_bytes, stderr_bytes,
                       created_at_ms, ended_at_ms, duration_ms, cpu_usec, memory_peak_bytes,
                       node_id, epoch)
                     SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                       $17, $18, $19, $20, $21, $22, $23, $24, node_id, epoch
                     FROM nodes WHERE node_id = $25 AND epoch = $26
                     ON CONFLICT (execution_id) DO UPDATE SET
                       status = excluded.status, outcome = excluded.outcome,
                       exit_code = excluded.exit_code, report = excluded.report,
                       stdout_bytes = excluded.stdout_bytes, stderr_bytes = excluded.stderr_bytes,
                       ended_at_ms = excluded.ended_at_ms, duration_ms = excluded.duration_ms,
                       cpu_usec = excluded.cpu_usec,
                       memory_peak_bytes = excluded.memory_peak_bytes,
                       epoch = excluded.epoch",
                )
                .bind(one.execution_id.to_string())
                .bind(one.tenant_id.to_string())
                .bind(one.key_id.to_string())
                .bind(&one.agent_id)
                .bind(&one.task_id)
                .bind(&one.session_id)
                .bind(&one.sandbox_id)
                .bind(&one.template_id)
                .bind(&one.tier)
                .bind(&one.kind)
                .bind(&one.language)
                .bind(&one.digest)
                .bind(one.code_bytes)
                .bind(one.status.as_str())
                .bind(&one.outcome)
                .bind(one.exit_code)
                // PostgreSQL's texts cannot hold this character.
                .bind(one.report.replace('\0', "\u{fffd}"))
                .bind(one.stdout_bytes)
                .bind(one.stderr_bytes)
                .bind(one.created_at_ms)
                .bind(one.ended_at_ms)
                .bind(one.duration_ms)
                .bind(one.cpu_usec)
                .bind(one.memory_peak_bytes)
                .bind(fence.node.as_str())
                .bind(fence.epoch)
                .execute(&mut *transaction)
                .await?;
            }
        });
        Ok(())
    }

    /// An execution of `tenant`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn execution(
        &self,
        tenant: TenantId,
        execution: ExecutionId,
    ) -> Result<Option<StoredExecution>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(READ)
            .bind(execution.to_string())
            .bind(tenant.to_string())
            .fetch_optional(pool)
            .await?))
    }

    /// A page of the history of a tenant.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list_executions(
        &self,
        tenant: TenantId,
        query: &ExecutionQuery,
    ) -> Result<ExecutionPage, DatabaseError> {
        let (at_ms, id) = query.after.clone().unwrap_or((i64::MAX, String::new()));
        let limit = query.limit.max(1);
        let mut executions: Vec<StoredExecution> = read!(self, |pool| sqlx::query_as(LIST)
            .bind(tenant.to_string())
            .bind(&query.agent_id)
            .bind(&query.task_id)
            .bind(&query.session_id)
            .bind(&query.sandbox_id)
            .bind(query.status.map(ExecutionStatus::as_str))
            .bind(query.from_ms.unwrap_or(i64::MIN))
            .bind(query.to_ms.unwrap_or(i64::MAX))
            .bind(at_ms)
            .bind(&id)
            .bind(i64::try_from(limit + 1).unwrap_or(i64::MAX))
            .fetch_all(pool)
            .await?);
        let has_more = executions.len() > limit;
        executions.truncate(limit);
        let last = executions.last().filter(|_| has_more);
        let next = last.map(|last| {
            let last = &last.execution;
            (last.created_at_ms, last.execution_id.to_string())
        });
        Ok(ExecutionPage { executions, next })
    }

    /// What the executions of a tenant took that were asked for in that time,
    /// by agent.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn execution_usage(
        &self,
        tenant: TenantId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<ExecutionUsage>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT agent_id, COUNT(*) AS executions,
               CAST(SUM(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) AS BIGINT) AS failed,
               CAST(COALESCE(SUM(duration_ms), 0) AS BIGINT) AS duration_ms,
               CAST(COALESCE(SUM(cpu_usec), 0) AS BIGINT) AS cpu_usec
             FROM executions
             WHERE tenant_id = $1 AND created_at_ms >= $2 AND created_at_ms < $3
             GROUP BY agent_id ORDER BY agent_id"
        )
        .bind(tenant.to_string())
        .bind(from_ms)
        .bind(to_ms)
        .fetch_all(pool)
        .await?))
    }

    /// Writes of every execution of this node that still runs, as far as the
    /// history knows, that its server ended; how many there were. To be called
    /// before the first execution of a new epoch.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn interrupt_executions(
        &self,
        fence: &Fence,
        outcome: &str,
        now_ms: i64,
    ) -> Result<u64, DatabaseError> {
        Ok(write!(self, |pool| sqlx::query(
            "UPDATE executions SET status = $4, outcome = $5, ended_at_ms = $6, epoch = $2
             WHERE node_id = $1 AND status = $3 AND epoch < $2
               AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $1 AND epoch = $2)"
        )
        .bind(fence.node.as_str())
        .bind(fence.epoch)
        .bind(ExecutionStatus::Running.as_str())
        .bind(ExecutionStatus::Interrupted.as_str())
        .bind(outcome)
        .bind(now_ms)
        .execute(pool)
        .await?
        .rows_affected()))
    }

    /// Deletes what is too old, and of each tenant what is beyond the number
    /// that is kept; how many that were. What runs stays.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn forget_executions(&self, bounds: HistoryBounds) -> Result<u64, DatabaseError> {
        let kept = i64::try_from(bounds.per_tenant).unwrap_or(i64::MAX);
        Ok(transaction!(self, |transaction| {
            let mut gone = sqlx::query(
                "DELETE FROM executions WHERE created_at_ms < $1 AND status <> 'running'",
            )
            .bind(bounds.before_ms)
            .execute(&mut *transaction)
            .await?
            .rows_affected();
            let crowded: Vec<String> = sqlx::query_scalar(
                "SELECT tenant_id FROM executions GROUP BY tenant_id HAVING COUNT(*) > $1",
            )
            .bind(kept)
            .fetch_all(&mut *transaction)
            .await?;
            for tenant in crowded {
                gone += sqlx::query(
                    "DELETE FROM executions WHERE status <> 'running' AND execution_id IN
                       (SELECT execution_id FROM executions WHERE tenant_id = $1
                        ORDER BY created_at_ms DESC, execution_id DESC LIMIT $3 OFFSET $2)",
                )
                .bind(tenant)
                .bind(kept)
                .bind(i64::MAX)
                .execute(&mut *transaction)
                .await?
                .rows_affected();
            }
            gone
        }))
    }
}
