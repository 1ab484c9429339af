//! What happened to a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An entry as the older form has it: a line that is a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When.
    pub timestamp: String,
    /// JSON with `level`, `message` and more.
    pub line: String,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogEntry {
    /// When.
    pub timestamp: String,
    /// How much it matters.
    pub level: String,
    /// What happened.
    pub message: String,
    /// More of it.
    pub fields: BTreeMap<String, String>,
}

/// Answer to `GET /sandboxes/{id}/logs`: the same entries twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxLogs {
    /// As lines.
    pub logs: Vec<LogLine>,
    /// As entries.
    pub log_entries: Vec<SandboxLogEntry>,
}

/// Answer to `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntries {
    /// The entries.
    pub logs: Vec<SandboxLogEntry>,
}
