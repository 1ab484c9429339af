//! Bounds and defaults of all sandboxes of a node.

use std::time::Duration;

use atoll_engine::{Limits, NetworkPolicy};

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
        Self {
            sandboxes_max: 200,
            snapshots_max: 100,
            lifetime_max: Duration::from_secs(24 * 60 * 60),
            limits: Limits::default(),
            network: NetworkPolicy::full(),
            code_without_token: CodeWithoutToken::default(),
            host: HostCapacity::measured(),
            pools: Vec::new(),
        }
    }
}
