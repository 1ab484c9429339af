//! What a caller asks for when it creates a sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{EngineConfig, Limits, Memory, NetworkPolicy, SandboxId};

/// Everything a runtime needs to create one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Its name.
    pub id: SandboxId,
    /// Read-only layers as unpacked directories, the top one first.
    pub layers: Vec<PathBuf>,
    /// Upper bounds.
    pub limits: Limits,
    /// What it can reach.
    pub network: NetworkPolicy,
    /// Host name inside.
    pub hostname: String,
    /// Environment of PID 1; commands get theirs with each request.
    pub env: BTreeMap<String, String>,
    /// When the monitor ends it, whoever is or is not watching.
    pub lifetime: Option<Duration>,
    /// Whether it lives longer than the process that asked for it.
    pub attachment: Attachment,
    /// What it goes on with, instead of booting.
    #[serde(default)]
    pub memory: Option<Memory>,
}

impl SandboxSpec {
    /// The layer of its guest: this version's, unless one runs already in its memory.
    pub(crate) fn guest<'a>(&'a self, config: &'a EngineConfig) -> &'a Path {
        self.memory.as_ref().map_or(&config.guest, Memory::guest)
    }
}

/// Bond between a sandbox and the process that created it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attachment {
    /// Ends with its client, however that one ends.
    Client,
    /// Lives until its lifetime ends or somebody destroys it.
    Detached,
}
