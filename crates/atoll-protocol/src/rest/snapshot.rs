//! Snapshots and forks.

use serde::{Deserialize, Serialize};

use super::{ErrorBody, Sandbox};

/// Body of `POST /sandboxes/{id}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NewSnapshot {
    /// What to call it, `[namespace/]name[:tag]`.
    pub name: Option<String>,
    /// Whether memory is wanted too.
    pub memory: Option<bool>,
}

/// A snapshot, as lists and its own creation show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// What `templateID` of a creation takes.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// What it is called, without the tag.
    pub names: Vec<String>,
    /// Whether processes go on in what is made of it. Not E2B's: others leave it out.
    #[serde(rename = "hasMemory", default)]
    pub has_memory: bool,
}

/// Body of `POST /sandboxes/{id}/fork`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Fork {
    /// How long each fork lives, in seconds.
    pub timeout: Option<i64>,
    /// How many.
    pub count: Option<i64>,
}

/// What became of one fork.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkResult {
    /// It runs.
    Sandbox(Sandbox),
    /// It could not be made.
    Error(ErrorBody),
}
