//! Warm pools: Atoll's own, E2B has no such route.

use serde::{Deserialize, Serialize};

/// How large a pool is meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PoolMode {
    /// Always as many.
    Fixed,
    /// As the last minutes asked for.
    Adaptive,
}

/// One entry of `GET /pools`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Name of its template.
    pub template: String,
    /// How large it is meant to be.
    pub mode: PoolMode,
    /// Most members that it ever has.
    pub max: usize,
    /// Members that it should have now.
    pub wanted: usize,
    /// Members that can be handed out.
    pub ready: usize,
    /// Members that are being made.
    pub starting: usize,
    /// Members that were handed out, since the server started.
    pub claimed: u64,
    /// Creations of its template that got none.
    pub misses: u64,
    /// Members that were found to be of no use.
    pub replaced: u64,
    /// Why the last one could not be made, until one can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
