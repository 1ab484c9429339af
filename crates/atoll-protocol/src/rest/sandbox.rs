//! Sandboxes: made, looked at, listed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Network, NetworkDetail, Secret};

/// Body of `POST /v2/sandboxes` and `POST /sandboxes`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    /// Id or name of the template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds it lives.
    #[serde(default)]
    pub timeout: Option<i64>,
    /// Pause it at its end instead of killing it.
    #[serde(default)]
    pub auto_pause: Option<bool>,
    /// Whether such a pause keeps its memory.
    #[serde(default)]
    pub auto_pause_memory: Option<bool>,
    /// Whether traffic wakes it up.
    #[serde(default)]
    pub auto_resume: Option<AutoResume>,
    /// Whether it may reach the internet; in this spelling.
    #[serde(default, rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    /// What it may reach, and who may reach it.
    #[serde(default)]
    pub network: Option<Network>,
    /// What it may use; Atoll's own.
    #[serde(default)]
    pub limits: Option<LimitsWish>,
    /// What its owner writes on it.
    #[serde(default)]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Environment of its commands.
    #[serde(default)]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Servers that the client itself starts; told for information.
    #[serde(default)]
    pub mcp: Option<Value>,
    /// Identity tokens it wants.
    #[serde(default)]
    pub iam: Option<Value>,
    /// Volumes it wants.
    #[serde(default)]
    pub volume_mounts: Option<Vec<Value>>,
}

/// What a sandbox may use; as its template has it where nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsWish {
    /// Memory in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Writable disk in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
}

/// Whether traffic wakes a paused sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct AutoResume {
    /// It does.
    #[serde(default)]
    pub enabled: Option<bool>,
}

/// Answer to a creation and a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Its template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Its name.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// [`super::CLIENT_ID`].
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// Name of its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// What its guest can do.
    pub envd_version: String,
    /// Opens the guest.
    pub envd_access_token: Secret,
    /// Opens its ports, when not everybody may come.
    pub traffic_access_token: Option<Secret>,
    /// Under which its ports have names.
    pub domain: Option<String>,
}

/// What a sandbox does, as far as clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    /// It runs.
    Running,
    /// It holds still.
    Paused,
}

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    /// Its template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Name of its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Its name.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// [`super::CLIENT_ID`].
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// When it began to run.
    pub started_at: String,
    /// When its time is over.
    pub end_at: String,
    /// CPUs it may use, rounded up.
    pub cpu_count: u64,
    /// Memory it may use.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u64,
    /// Disk it may use.
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u64,
    /// What its owner wrote on it.
    pub metadata: BTreeMap<String, String>,
    /// What it does.
    pub state: SandboxState,
    /// What its guest can do.
    pub envd_version: String,
}

/// What happens at the end of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// It ends.
    Kill,
    /// It is paused.
    Pause,
}

/// What happens at the end of its time, and on traffic after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// Whether traffic wakes it up.
    pub auto_resume: bool,
    /// What happens at the end of its time.
    pub on_timeout: OnTimeout,
}

/// Answer to `GET /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    /// What lists say of it.
    #[serde(flatten)]
    pub listed: ListedSandbox,
    /// Opens the guest.
    pub envd_access_token: Secret,
    /// Whether it may reach the internet, if that was said.
    pub allow_internet_access: Option<bool>,
    /// Under which its ports have names.
    pub domain: Option<String>,
    /// What it may reach, and who may reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkDetail>,
    /// What happens at the end of its time.
    pub lifecycle: Lifecycle,
    /// What was kept of it, while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
}

/// Body of `POST …/connect` and the older `…/resume`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Connect {
    /// Seconds it lives at least from now on.
    pub timeout: Option<i64>,
    /// Whether it wakes up with its memory.
    pub memory: Option<bool>,
}

/// Body of `POST …/pause`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pause {
    /// Whether its memory is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// Whether its guest has to answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

/// What was kept of a sandbox when it was paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Everything.
    Full,
    /// Its files.
    Filesystem,
}

/// Body of `POST …/timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Timeout {
    /// Seconds it lives from now on.
    pub timeout: i64,
}

/// Body of `POST …/refreshes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Extension {
    /// Seconds it lives at least from now on.
    pub duration: Option<i64>,
}
