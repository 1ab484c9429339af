//! What sandboxes have used: sums by the minute, and for each sandbox that is
//! there the last reading, from which the next one goes on.

use super::{Database, DatabaseError, Fence, TenantId, read, transaction};

/// The time that one row sums up.
pub const METERED_MS: i64 = 60_000;

/// Counters of a sandbox at one moment, as the host read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct MeterReading {
    /// When.
    pub at_ms: i64,
    /// CPU time since it was made.
    pub cpu_usec: i64,
    /// Bytes that it has sent.
    pub sent_bytes: i64,
    /// Bytes that it has got.
    pub received_bytes: i64,
    /// Memory that it has now.
    pub memory_bytes: i64,
    /// Disk that it has now.
    pub disk_bytes: i64,
}

/// What was used in a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct UsageSums {
    /// How long it ran.
    pub running_ms: i64,
    /// CPU time.
    pub cpu_usec: i64,
    /// Memory, in KiB times seconds.
    pub memory_kib_s: i64,
    /// Disk, in KiB times seconds.
    pub disk_kib_s: i64,
    /// Bytes sent.
    pub sent_bytes: i64,
    /// Bytes received.
    pub received_bytes: i64,
}

/// By what sums are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    /// One sum per agent.
    Agent,
    /// One sum per task.
    Task,
    /// One sum per sandbox.
    Sandbox,
}

/// What to sum up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    /// By what.
    pub by: UsageBy,
    /// From this moment on, to the minute.
    pub from_ms: i64,
    /// Before this one.
    pub to_ms: i64,
    /// Only of this agent.
    pub agent_id: Option<String>,
    /// Only of this task.
    pub task_id: Option<String>,
    /// Only of this sandbox.
    pub sandbox_id: Option<String>,
    /// How many sums at most.
    pub limit: usize,
    /// The name after which the page begins.
    pub after: Option<String>,
}

/// One sum.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct MeteredUsage {
    /// The agent, task or sandbox; empty where none was named.
    pub name: String,
    /// How many sandboxes it is of.
    pub sandboxes: i64,
    /// What they used.
    #[sqlx(flatten)]
    pub sums: UsageSums,
}

/// The sums of one tenant. `$8` is what pages go on after.
macro_rules! sums_by {
    ($column:literal) => {
        concat!(
            "SELECT COALESCE(",
            $column,
            ", '') AS name, COUNT(DISTINCT sandbox_id) AS sandboxes,
               CAST(SUM(running_ms) AS BIGINT) AS running_ms,
               CAST(SUM(cpu_usec) AS BIGINT) AS cpu_usec,
               CAST(SUM(memory_kib_s) AS BIGINT) AS memory_kib_s,
               CAST(SUM(disk_kib_s) AS BIGINT) AS disk_kib_s,
               CAST(SUM(sent_bytes) AS BIGINT) AS sent_bytes,
               CAST(SUM(received_bytes) AS BIGINT) AS received_bytes
             FROM usage_minutes
             WHERE tenant_id = $1 AND minute_ms >= $2 AND minute_ms < $3
               AND ($4 IS NULL OR agent_id = $4)
               AND ($5 IS NULL OR task_id = $5)
               AND ($6 IS NULL OR sandbox_id = $6)
               AND ($8 IS NULL OR COALESCE(",
            $column,
            ", '') > $8)
             GROUP BY 1 ORDER BY 1 LIMIT $7"
        )
    };
}

impl Database {
    /// The last reading of a sandbox.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn last_reading(&self, sandbox: &str) -> Result<Option<MeterReading>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM usage_readings WHERE sandbox_id = $1"
        )
        .bind(sandbox)
        .fetch_optional(pool)
        .await?))
    }

    /// Puts a reading of a live sandbox in the place of the last one, and adds
    /// what was used since then to the sums of its minute. Whether `last` was
    /// the last one, there is such a sandbox and `fence` is the newest of its node.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn record_usage(
        &self,
        fence: &Fence,
        sandbox: &str,
        (last, now): (Option<MeterReading>, MeterReading),
        (minute_ms, used): (i64, UsageSums),
    ) -> Result<bool, DatabaseError> {
        Ok(transaction!(self, |transaction| 'written: {
            let taken = sqlx::query(
                "INSERT INTO usage_readings (sandbox_id, at_ms, cpu_usec, sent_bytes,
                   received_bytes, memory_bytes, disk_bytes, node_id, epoch)
                 SELECT s.sandbox_id, $4, $5, $6, $7, $8, $9, n.node_id, n.epoch
                 FROM sandboxes s JOIN nodes n ON n.node_id = s.node_id
                 WHERE s.sandbox_id = $1 AND n.node_id = $2 AND n.epoch = $3
                 ON CONFLICT (sandbox_id) DO UPDATE SET
                   at_ms = excluded.at_ms,
                   cpu_usec = excluded.cpu_usec,
                   sent_bytes = excluded.sent_bytes,
                   received_bytes = excluded.received_bytes,
                   memory_bytes = excluded.memory_bytes,
                   disk_bytes = excluded.disk_bytes,
                   epoch = excluded.epoch
                 WHERE usage_readings.at_ms = $10",
            )
            .bind(sandbox)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .bind(now.at_ms)
            .bind(now.cpu_usec)
            .bind(now.sent_bytes)
            .bind(now.received_bytes)
            .bind(now.memory_bytes)
            .bind(now.disk_bytes)
            .bind(last.map_or(i64::MIN, |last| last.at_ms))
            .execute(&mut *transaction)
            .await?
            .rows_affected();
            if taken == 0 {
                break 'written false;
            }
            if used == UsageSums::default() {
                break 'written true;
            }
            sqlx::query(
                "INSERT INTO usage_minutes (sandbox_id, minute_ms, tenant_id, agent_id, task_id,
                   running_ms, cpu_usec, memory_kib_s, disk_kib_s, sent_bytes, received_bytes,
                   node_id, epoch)
                 SELECT s.sandbox_id, $2, s.tenant_id, s.agent_id, s.task_id, $3, $4, $5, $6, $7,
                   $8, n.node_id, n.epoch
                 FROM sandboxes s JOIN nodes n ON n.node_id = s.node_id
                 WHERE s.sandbox_id = $1
                 ON CONFLICT (sandbox_id, minute_ms) DO UPDATE SET
                   running_ms = usage_minutes.running_ms + excluded.running_ms,
                   cpu_usec = usage_minutes.cpu_usec + excluded.cpu_usec,
                   memory_kib_s = usage_minutes.memory_kib_s + excluded.memory_kib_s,
                   disk_kib_s = usage_minutes.disk_kib_s + excluded.disk_kib_s,
                   sent_bytes = usage_minutes.sent_bytes + excluded.sent_bytes,
                   received_bytes = usage_minutes.received_bytes + excluded.received_bytes,
                   epoch = excluded.epoch",
            )
            .bind(sandbox)
            .bind(minute_ms)
            .bind(used.running_ms)
            .bind(used.cpu_usec)
            .bind(used.memory_kib_s)
            .bind(used.disk_kib_s)
            .bind(used.sent_bytes)
            .bind(used.received_bytes)
            .execute(&mut *transaction)
            .await?;
            true
        }))
    }

    /// What sandboxes of a tenant used in a time, in the order of names.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn metered_usage(
        &self,
        tenant: TenantId,
        query: &UsageQuery,
    ) -> Result<Vec<MeteredUsage>, DatabaseError> {
        let statement = match query.by {
            UsageBy::Agent => sums_by!("agent_id"),
            UsageBy::Task => sums_by!("task_id"),
            UsageBy::Sandbox => sums_by!("sandbox_id"),
        };
        let from_ms = query.from_ms.saturating_sub(METERED_MS - 1);
        Ok(read!(self, |pool| sqlx::query_as(statement)
            .bind(tenant.to_string())
            .bind(from_ms)
            .bind(query.to_ms)
            .bind(&query.agent_id)
            .bind(&query.task_id)
            .bind(&query.sandbox_id)
            .bind(i64::try_from(query.limit).unwrap_or(i64::MAX))
            .bind(&query.after)
            .fetch_all(pool)
            .await?))
    }

    /// Deletes sums of minutes before `before_ms`, and readings of sandboxes
    /// that are gone; how many sums that were.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn forget_usage(&self, before_ms: i64) -> Result<u64, DatabaseError> {
        Ok(transaction!(self, |transaction| {
            sqlx::query(
                "DELETE FROM usage_readings
                 WHERE sandbox_id NOT IN (SELECT sandbox_id FROM sandboxes)",
            )
            .execute(&mut *transaction)
            .await?;
            sqlx::query("DELETE FROM usage_minutes WHERE minute_ms < $1")
                .bind(before_ms)
                .execute(&mut *transaction)
                .await?
                .rows_affected()
        }))
    }
}
