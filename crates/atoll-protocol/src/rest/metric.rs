//! What sandboxes use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a sandbox used at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxMetric {
    /// When.
    pub timestamp: String,
    /// The same, in seconds since 1970.
    pub timestamp_unix: i64,
    /// CPUs it may use.
    pub cpu_count: i64,
    /// Use of one CPU, in percent.
    pub cpu_used_pct: f64,
    /// Bytes of memory in use.
    pub mem_used: i64,
    /// Bytes of memory it may use.
    pub mem_total: i64,
    /// Bytes of memory that hold files.
    pub mem_cache: i64,
    /// Bytes of disk in use.
    pub disk_used: i64,
    /// Bytes of disk it may use.
    pub disk_total: i64,
}

/// Answer to `GET /sandboxes/metrics`: the newest of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatestMetrics {
    /// By name of the sandbox.
    pub sandboxes: BTreeMap<String, SandboxMetric>,
}
