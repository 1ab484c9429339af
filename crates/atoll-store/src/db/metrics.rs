//! Samples of what sandboxes use: a ring per sandbox.

use super::{Database, DatabaseError, Fence, TenantId, read, transaction};

/// Time between two samples; of two in one interval the later one is kept.
pub const METRIC_INTERVAL_MS: i64 = 5000;

/// Samples kept per sandbox: two hours.
pub const METRIC_SAMPLES_KEPT: i64 = 1440;

/// What a sandbox used at one moment, as the host measured it.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct MetricSample {
    /// When it was taken.
    pub at_ms: i64,
    /// CPUs it may use, rounded up.
    pub cpu_count: i64,
    /// Use of one CPU in thousandths of a percent.
    pub cpu_used_millipercent: i64,
    /// Memory in use.
    pub memory_used_bytes: i64,
    /// Memory it may use.
    pub memory_total_bytes: i64,
    /// Memory that holds files and can be had back.
    pub memory_cache_bytes: i64,
    /// Disk in use.
    pub disk_used_bytes: i64,
    /// Disk it may use.
    pub disk_total_bytes: i64,
}

impl Database {
    /// Stores samples of live sandboxes, each in the place of the one a lap before, in one
    /// commit. Returns for how many there is such a sandbox and `fence` is the newest of its node.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn record_samples(
        &self,
        fence: &Fence,
        samples: &[(&str, &MetricSample)],
    ) -> Result<u64, DatabaseError> {
        let stored = transaction!(self, |transaction| {
            let mut stored = 0;
            for (sandbox, sample) in samples {
                let slot = sample
                    .at_ms
                    .div_euclid(METRIC_INTERVAL_MS)
                    .rem_euclid(METRIC_SAMPLES_KEPT);
                stored += sqlx::query(
            "INSERT INTO metric_samples (sandbox_id, slot, tenant_id, at_ms, cpu_count,
               cpu_used_millipercent, memory_used_bytes, memory_total_bytes, memory_cache_bytes,
               disk_used_bytes, disk_total_bytes, node_id, epoch)
             SELECT s.sandbox_id, $4, s.tenant_id, $5, $6, $7, $8, $9, $10, $11, $12, n.node_id, n.epoch
             FROM sandboxes s JOIN nodes n ON n.node_id = s.node_id
             WHERE s.sandbox_id = $1 AND n.node_id = $2 AND n.epoch = $3
             ON CONFLICT (sandbox_id, slot) DO UPDATE SET
               at_ms = excluded.at_ms,
               cpu_count = excluded.cpu_count,
               cpu_used_millipercent = excluded.cpu_used_millipercent,
               memory_used_bytes = excluded.memory_used_bytes,
               memory_total_bytes = excluded.memory_total_bytes,
               memory_cache_bytes = excluded.memory_cache_bytes,
               disk_used_bytes = excluded.disk_used_bytes,
               disk_total_bytes = excluded.disk_total_bytes,
               epoch = excluded.epoch"
        )
        .bind(*sandbox)
        .bind(fence.node.as_str())
        .bind(fence.epoch)
        .bind(slot)
        .bind(sample.at_ms)
        .bind(sample.cpu_count)
        .bind(sample.cpu_used_millipercent)
        .bind(sample.memory_used_bytes)
        .bind(sample.memory_total_bytes)
        .bind(sample.memory_cache_bytes)
        .bind(sample.disk_used_bytes)
        .bind(sample.disk_total_bytes)
        .execute(&mut *transaction)
        .await?
        .rows_affected();
            }
            stored
        });
        Ok(stored)
    }

    /// Samples of a sandbox of `tenant` from a moment to another, both
    /// included, the oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn samples(
        &self,
        tenant: TenantId,
        sandbox: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<MetricSample>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM metric_samples
             WHERE sandbox_id = $1 AND tenant_id = $2 AND at_ms BETWEEN $3 AND $4
             ORDER BY at_ms"
        )
        .bind(sandbox)
        .bind(tenant.to_string())
        .bind(from_ms)
        .bind(to_ms)
        .fetch_all(pool)
        .await?))
    }
}
