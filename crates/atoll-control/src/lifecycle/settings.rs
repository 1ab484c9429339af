//! Bounds and defaults of all sandboxes of a node.

use std::time::Duration;

use atoll_engine::{Limits, NetworkPolicy, open_files_ceiling};

use super::{HostCapacity, PoolSettings};
use crate::running::CodeWithoutToken;

/// Bounds and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Sandboxes that one tenant has at once, at most.
    pub sandboxes_max: usize,
    /// Snapshots that one tenant has at once, at most.
    pub snapshots_max: usize,
    /// How long one lives, at most, however often its time is extended.
    pub lifetime_max: Duration,
    /// Limits where a template names none.
    pub limits: Limits,
    /// Most that a creation or a session gets of what it asks for.
    pub limits_max: Limits,
    /// What a sandbox may reach when its creation says nothing of it.
    pub network: NetworkPolicy,
    /// In whose sandboxes code runs without a token.
    pub code_without_token: CodeWithoutToken,
    /// What all sandboxes of the node may have together.
    pub host: HostCapacity,
    /// Sandboxes that wait for somebody to ask.
    pub pools: Vec<PoolSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        let host = HostCapacity::measured();
        Self {
            sandboxes_max: 200,
            snapshots_max: 100,
            lifetime_max: Duration::from_secs(24 * 60 * 60),
            limits_max: limits_max(&host),
            limits: Limits::default(),
            network: NetworkPolicy::full(),
            code_without_token: CodeWithoutToken::default(),
            host,
            pools: Vec::new(),
        }
    }
}

/// What nobody gets more of unless the operator says so: all of this host, and
/// of what it has no measure for what large programs need.
fn limits_max(host: &HostCapacity) -> Limits {
    let most = Limits {
        memory_mib: host.memory_mib,
        cpu_millis: host.cpu_millis,
        pids: 32 * 1024,
        disk_mib: 64 * 1024,
        inodes: Some(16 * 1024 * 1024),
        open_files: open_files_ceiling().min(Limits::LARGEST.open_files),
        shm_mib: host.memory_mib,
    };
    most.or_larger(&Limits::default())
}
