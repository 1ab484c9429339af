//! What requests and answers hold, besides executions.

use std::collections::BTreeMap;

use atoll_control::executions::Attempt;
use atoll_control::lifecycle::SandboxView;
use atoll_control::sessions::Recovered;
use atoll_control::templates::Resources;
use atoll_engine::Outcome;
use atoll_store::db::{SandboxState, Session, Tombstone};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::super::moment::rfc3339;

/// Variables, or what an owner writes on something.
pub(super) type Texts = BTreeMap<String, String>;

/// A sandbox that is wanted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct NewSandbox {
    /// Name or id of the template; `base` when absent.
    pub(super) template: Option<String>,
    /// The agent that it is for.
    pub(super) agent_id: Option<String>,
    /// The task that it is for; completing the task ends it.
    pub(super) task_id: Option<String>,
    /// What to write on it.
    pub(super) metadata: Texts,
    /// Environment of its commands.
    pub(super) environment: Texts,
    /// How long it lives, in seconds; 300 when absent.
    pub(super) timeout_s: Option<u64>,
    /// Whether it may reach the internet; as the operator says when absent.
    pub(super) internet: Option<bool>,
    /// What it may use; as its template says where absent.
    #[serde(deserialize_with = "object")]
    pub(super) limits: Option<LimitsWish>,
}

/// What has fields, and is no list of their values: `serde` takes both.
fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let fields: Option<Map<String, Value>> = Option::deserialize(from)?;
    let read = |fields| serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom);
    fields.map(read).transpose()
}

/// Limits that are wanted; what is not named is as the template has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct LimitsWish {
    /// Memory.
    #[schemars(range(min = 16))]
    memory_mib: Option<u64>,
    /// Thousandths of a CPU.
    #[schemars(range(min = 10))]
    cpu_millis: Option<u64>,
    /// Disk.
    #[schemars(range(min = 16))]
    disk_mib: Option<u64>,
    /// Processes and threads at once.
    #[schemars(range(min = 8))]
    pids: Option<u64>,
    /// Files and directories on its disk.
    #[schemars(range(min = 256))]
    inodes: Option<u64>,
    /// Open files of one process.
    #[schemars(range(min = 64))]
    open_files: Option<u64>,
    /// Size of `/dev/shm`.
    #[schemars(range(min = 1))]
    shm_mib: Option<u64>,
}

impl From<LimitsWish> for Resources {
    fn from(wish: LimitsWish) -> Self {
        Self {
            memory_mib: wish.memory_mib,
            cpu_millis: wish.cpu_millis,
            disk_mib: wish.disk_mib,
            pids: wish.pids,
            inodes: wish.inodes,
            open_files: wish.open_files,
            shm_mib: wish.shm_mib,
        }
    }
}

impl From<Resources> for LimitsWish {
    fn from(resources: Resources) -> Self {
        Self {
            memory_mib: resources.memory_mib,
            cpu_millis: resources.cpu_millis,
            disk_mib: resources.disk_mib,
            pids: resources.pids,
            inodes: resources.inodes,
            open_files: resources.open_files,
            shm_mib: resources.shm_mib,
        }
    }
}

/// Where a sandbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum SandboxStatus {
    /// It takes commands.
    Running,
    /// It holds still.
    Paused,
    /// It ended although nobody wanted that.
    Error,
    /// It ended.
    Stopped,
}

impl SandboxStatus {
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "running" => Some(Self::Running),
            "paused" => Some(Self::Paused),
            "error" => Some(Self::Error),
            "stopped" => Some(Self::Stopped),
            _ => None,
        }
    }
}

/// A sandbox.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sandbox")]
pub(in super::super) struct SandboxBody {
    /// Its id.
    sandbox_id: String,
    /// Whose it is; only in lists of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant_id: Option<String>,
    /// Where it stands.
    pub(super) status: SandboxStatus,
    /// Why it ended.
    reason: Option<String>,
    /// What it was made from.
    template: String,
    /// The same by id.
    template_id: String,
    /// The agent it is for.
    agent_id: Option<String>,
    /// The task it is for.
    task_id: Option<String>,
    /// What its owner wrote on it.
    metadata: Texts,
    /// When it was asked for.
    created_at: String,
    /// When its time is over, while it runs.
    ends_at: Option<String>,
    /// When it ended.
    destroyed_at: Option<String>,
    /// What it may use, while it is there.
    limits: Option<LimitsBody>,
}

/// What a sandbox may use.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Limits")]
pub(in super::super) struct LimitsBody {
    /// Thousandths of a CPU.
    cpu_millis: u64,
    /// Memory.
    memory_mib: u64,
    /// Disk.
    disk_mib: u64,
    /// Processes and threads.
    pids: u64,
    /// Files and directories on its disk; as many as fit when absent.
    inodes: Option<u64>,
    /// Open files of one process.
    open_files: u64,
    /// Size of `/dev/shm`.
    shm_mib: u64,
}

impl From<SandboxView> for SandboxBody {
    fn from(view: SandboxView) -> Self {
        let row = view.row;
        let status = match row.state {
            SandboxState::Pausing | SandboxState::Paused => SandboxStatus::Paused,
            SandboxState::Creating
            | SandboxState::Running
            | SandboxState::Resuming
            | SandboxState::Killing => SandboxStatus::Running,
        };
        Self {
            ends_at: (status == SandboxStatus::Running).then(|| rfc3339(row.end_at_ms)),
            sandbox_id: row.sandbox_id,
            tenant_id: None,
            status,
            reason: None,
            template: row.template_name,
            template_id: row.template_id,
            agent_id: row.agent_id,
            task_id: row.task_id,
            metadata: row.metadata.0,
            created_at: rfc3339(row.created_at_ms),
            destroyed_at: None,
            limits: Some(LimitsBody {
                cpu_millis: view.limits.cpu_millis,
                memory_mib: view.limits.memory_mib,
                disk_mib: view.limits.disk_mib,
                pids: view.limits.pids,
                inodes: view.limits.inodes,
                open_files: view.limits.open_files,
                shm_mib: view.limits.shm_mib,
            }),
        }
    }
}

impl From<Tombstone> for SandboxBody {
    fn from(stone: Tombstone) -> Self {
        let outcome: Option<Outcome> = serde_json::from_str(&stone.outcome).ok();
        let status = match &outcome {
            Some(Outcome::Crashed { .. }) | None => SandboxStatus::Error,
            Some(_) => SandboxStatus::Stopped,
        };
        Self {
            sandbox_id: stone.sandbox_id,
            tenant_id: None,
            status,
            reason: outcome.map(|outcome| outcome.to_string()),
            template: stone.template_name,
            template_id: stone.template_id,
            agent_id: stone.agent_id,
            task_id: stone.task_id,
            metadata: stone.metadata.0,
            created_at: rfc3339(stone.created_at_ms),
            ends_at: None,
            destroyed_at: Some(rfc3339(stone.ended_at_ms)),
            limits: None,
        }
    }
}

/// A part of a list of sandboxes.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SandboxList {
    /// In order.
    pub(super) sandboxes: Vec<SandboxBody>,
    /// Where the next page begins, if there is one.
    pub(super) next_cursor: Option<String>,
}

/// An agent that is let in.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewGrant {
    /// The agent.
    pub(super) agent_id: String,
}

/// Agents that were let in.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct GrantList {
    /// Their names.
    pub(super) agents: Vec<String>,
}

/// A session that is wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewSessionBody {
    /// The agent that it is for; that of the header when absent.
    #[serde(default)]
    pub(super) agent_id: Option<String>,
    /// Its task. An agent has one session per task: asking again gives the same.
    #[serde(default)]
    pub(super) task_id: Option<String>,
    /// The user that the agent works for.
    #[serde(default)]
    pub(super) user_id: Option<String>,
    /// Name or id of the template; `base` when absent.
    #[serde(default)]
    pub(super) template: Option<String>,
    /// What to write on it, and on its sandboxes.
    #[serde(default)]
    pub(super) metadata: Texts,
    /// Environment of its sandboxes.
    #[serde(default)]
    pub(super) environment: Texts,
    /// How long nobody may use it before it ends, in seconds; 3600 when absent.
    #[serde(default)]
    pub(super) idle_timeout_s: Option<u64>,
    /// How long it lives, in seconds; a day when absent.
    #[serde(default)]
    pub(super) lifetime_s: Option<u64>,
    /// Whether its sandboxes may reach the internet; as the operator says when absent.
    #[serde(default)]
    pub(super) internet: Option<bool>,
    /// What its sandboxes may use; as their template says where absent.
    #[serde(default, deserialize_with = "object")]
    pub(super) limits: Option<LimitsWish>,
}

/// A session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Session")]
pub(in super::super) struct SessionBody {
    /// Its id.
    session_id: String,
    /// `active` or `ended`.
    status: &'static str,
    /// Why it ended: `deleted`, `task_completed`, `idle`, `expired`, `not_made`.
    reason: Option<String>,
    /// The agent it is for.
    agent_id: String,
    /// Its task.
    task_id: Option<String>,
    /// The user that the agent works for.
    user_id: Option<String>,
    /// What its sandboxes are made from.
    template: String,
    /// What its owner wrote on it.
    metadata: Texts,
    /// Limits that were asked for; each of its sandboxes has them.
    limits: LimitsWish,
    /// The sandbox it has now.
    sandbox_id: Option<String>,
    /// How many sandboxes it has had: more than one, if one was lost.
    sandboxes_used: i64,
    /// When it was made.
    created_at: String,
    /// When it was used last.
    last_used_at: String,
    /// When it ends if nobody uses it.
    idle_at: Option<String>,
    /// When it ends, used or not.
    expires_at: String,
    /// When it ended.
    ended_at: Option<String>,
    /// Why it has another sandbox than before; told to who finds that out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recovered: Option<RecoveredBody>,
}

impl From<Session> for SessionBody {
    fn from(row: Session) -> Self {
        let is_active = row.ended_at_ms.is_none() && row.end_reason.is_none();
        let idle_ms = row.last_used_at_ms.saturating_add(row.idle_ms);
        Self {
            session_id: row.session_id.to_string(),
            status: if is_active { "active" } else { "ended" },
            reason: row.end_reason,
            agent_id: row.agent_id,
            task_id: row.task_id,
            user_id: row.user_id,
            template: row.template,
            metadata: row.metadata.0,
            limits: serde_json::from_str::<Resources>(&row.limits)
                .unwrap_or_default()
                .into(),
            sandbox_id: row.sandbox_id.filter(|_| is_active),
            sandboxes_used: row.generation,
            created_at: rfc3339(row.created_at_ms),
            last_used_at: rfc3339(row.last_used_at_ms),
            idle_at: is_active.then(|| rfc3339(idle_ms.min(row.expires_at_ms))),
            expires_at: rfc3339(row.expires_at_ms),
            ended_at: row.ended_at_ms.map(rfc3339),
            recovered: None,
        }
    }
}

/// A part of a list of sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SessionList {
    /// The newest first.
    pub(super) sessions: Vec<SessionBody>,
    /// Where the next page begins, if there is one.
    pub(super) next_cursor: Option<String>,
}

/// What the completion of a task ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct CompletedTask {
    /// The task.
    pub(super) task_id: String,
    /// Sessions that ended.
    pub(super) sessions: Vec<String>,
    /// Sandboxes that ended.
    pub(super) sandboxes: Vec<String>,
}

/// A session whose sandbox was gone, and that has another one now.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Recovered")]
pub(in super::super) struct RecoveredBody {
    /// How the sandbox before ended.
    reason: String,
    /// The sandbox before.
    previous_sandbox_id: String,
    /// What was in it.
    lost: Vec<String>,
    /// Attempts to make another one that failed.
    attempts: Vec<AttemptBody>,
}

impl From<Recovered> for RecoveredBody {
    fn from(recovered: Recovered) -> Self {
        let attempts = recovered.attempts.into_iter();
        Self {
            reason: recovered.reason,
            previous_sandbox_id: recovered.previous_sandbox_id,
            lost: recovered.lost,
            attempts: attempts.map(AttemptBody::from).collect(),
        }
    }
}

/// An attempt that failed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Attempt")]
pub(in super::super) struct AttemptBody {
    /// Which one it was, beginning with 1.
    number: u32,
    /// What it met.
    message: String,
    /// How long was waited then.
    waited_ms: u64,
}

impl From<Attempt> for AttemptBody {
    fn from(attempt: Attempt) -> Self {
        Self {
            number: attempt.number,
            message: attempt.message,
            waited_ms: attempt.waited_ms,
        }
    }
}
