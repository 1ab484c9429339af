//! What happened to sandboxes, as it is read, followed and sent to webhooks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxEvent {
    /// Its number; a later event has a higher one.
    pub id: i64,
    /// When.
    pub timestamp: String,
    /// What happened.
    pub kind: String,
    /// To which sandbox, if to one.
    #[serde(rename = "sandboxID", default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// On which node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// More of it.
    #[serde(default)]
    pub detail: Map<String, Value>,
}

/// Answer to `GET /events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// In the order that was asked for.
    pub events: Vec<SandboxEvent>,
    /// From where to ask for more: the number of the last one, or where the question began.
    pub next: i64,
}
