//! What a sandbox uses, what all of them used, and what executions took.

use atoll_control::identity::now_ms;
use atoll_store::db::{MeteredUsage, UsageBy, UsageQuery};
use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::Plane;
use super::super::moment::rfc3339;
use super::identity::Requester;
use super::problem::{ErrorCode, Problem};
use super::request::{Named, Params, wrong};

/// What a sandbox has used so far, as the host counts it.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SandboxUsage {
    /// The sandbox.
    sandbox_id: String,
    /// How long it has lived.
    lifetime_ms: i64,
    /// CPU time.
    cpu_usec: u64,
    /// Memory in use.
    memory_bytes: u64,
    /// Most memory ever in use.
    memory_peak_bytes: u64,
    /// Memory it may use.
    memory_limit_bytes: u64,
    /// Disk in use.
    disk_bytes: u64,
    /// Disk it may use.
    disk_limit_bytes: u64,
    /// Processes and threads.
    pids: u64,
    /// Processes that the kernel ended for memory.
    oom_kills: u64,
}

/// What the executions of one agent took.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct AgentUsage {
    /// The agent; absent for those that named none.
    agent_id: Option<String>,
    /// How many there were.
    executions: i64,
    /// How many of them failed.
    failed: i64,
    /// How long they took, together.
    duration_ms: i64,
    /// CPU time that they used, together.
    cpu_usec: i64,
}

/// What sandboxes used in a time, as the host counted it.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Metered {
    /// The agent, task or sandbox; absent for those that named none.
    name: Option<String>,
    /// How many sandboxes it is of.
    sandboxes: i64,
    /// How long they ran, together.
    running_ms: i64,
    /// CPU time.
    cpu_usec: i64,
    /// Memory, in MiB times seconds.
    memory_mib_s: f64,
    /// Disk, in MiB times seconds.
    disk_mib_s: f64,
    /// Bytes that they sent.
    egress_bytes: i64,
    /// Bytes that they got.
    ingress_bytes: i64,
}

impl From<MeteredUsage> for Metered {
    #[allow(
        clippy::cast_precision_loss,
        reason = "sums beyond 2^52 KiB·s are exact enough to a part in 10^15"
    )]
    fn from(metered: MeteredUsage) -> Self {
        let sums = metered.sums;
        Self {
            name: Some(metered.name).filter(|name| !name.is_empty()),
            sandboxes: metered.sandboxes,
            running_ms: sums.running_ms,
            cpu_usec: sums.cpu_usec,
            memory_mib_s: sums.memory_kib_s as f64 / 1024.0,
            disk_mib_s: sums.disk_kib_s as f64 / 1024.0,
            egress_bytes: sums.sent_bytes,
            ingress_bytes: sums.received_bytes,
        }
    }
}

/// What executions took and sandboxes used in a time.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Usage {
    /// Where the time begins.
    from: Option<String>,
    /// Where it ends.
    to: String,
    /// What executions took, by agent.
    agents: Vec<AgentUsage>,
    /// What sandboxes used, in whole minutes, by what `by` says.
    metered: Vec<Metered>,
    /// Where the next page of `metered` begins, if there is one.
    next_cursor: Option<String>,
}

pub(in super::super) async fn usage_of_sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<SandboxUsage>, Problem> {
    let row = plane.places.row(&requester.caller, &id).await?;
    let place = plane.places.find(&requester.caller, &id).await?;
    let stats = place.sandbox.live.stats().await;
    let stats = stats.map_err(|error| {
        Problem::new(
            ErrorCode::SandboxUnavailable,
            format!("the sandbox cannot be measured: {error}"),
        )
    })?;
    Ok(Json(SandboxUsage {
        sandbox_id: row.sandbox_id,
        lifetime_ms: now_ms().saturating_sub(row.started_at_ms),
        cpu_usec: stats.cpu_usec,
        memory_bytes: stats.memory_bytes,
        memory_peak_bytes: stats.memory_peak_bytes,
        memory_limit_bytes: place.sandbox.limits.memory_bytes(),
        disk_bytes: stats.disk_total_bytes.saturating_sub(stats.disk_free_bytes),
        disk_limit_bytes: stats.disk_total_bytes,
        pids: stats.pids,
        oom_kills: stats.oom_kills,
    }))
}

pub(in super::super) async fn usage(
    State(plane): State<Plane>,
    requester: Requester,
    params: Params,
) -> Result<Json<Usage>, Problem> {
    let from_ms = params.moment("from")?;
    let to_ms = params
        .moment("to")?
        .unwrap_or_else(|| now_ms().saturating_add(1));
    let by = match params.text("by") {
        None | Some("agent") => UsageBy::Agent,
        Some("task") => UsageBy::Task,
        Some("sandbox") => UsageBy::Sandbox,
        Some(other) => return Err(wrong("by", other)),
    };
    let limit = params.limit()?;
    let (caller, from) = (&requester.caller, from_ms.unwrap_or(i64::MIN));
    // An agent sees its own.
    let agent_id = match (&caller.agent_id, params.owned("agent_id")) {
        (Some(own), Some(named)) if *own != named => {
            let message = "an agent sees its own usage only";
            return Err(Problem::new(ErrorCode::Forbidden, message));
        }
        (own, named) => named.or_else(|| own.clone()),
    };
    // With a sign before the name, which may be empty.
    let after = match params.text("cursor").map(|cursor| cursor.strip_prefix('~')) {
        None => None,
        Some(Some(name)) => Some(name.to_owned()),
        Some(None) => return Err(Problem::invalid("'cursor' is none of this list")),
    };
    let query = UsageQuery {
        by,
        from_ms: from,
        to_ms,
        agent_id: agent_id.clone(),
        task_id: params.owned("task_id"),
        sandbox_id: params.owned("sandbox_id"),
        limit: limit + 1,
        after,
    };
    let mut metered = plane.database.metered_usage(caller.tenant, &query).await?;
    let has_more = metered.len() > limit;
    metered.truncate(limit);
    let last = metered.last().filter(|_| has_more);
    let next_cursor = last.map(|last| format!("~{}", last.name));
    let mut agents = plane.executions.usage(caller, from, to_ms).await?;
    if agent_id.is_some() {
        agents.retain(|one| one.agent_id == agent_id);
    }
    let agents = agents.into_iter().map(|one| AgentUsage {
        agent_id: one.agent_id,
        executions: one.executions,
        failed: one.failed,
        duration_ms: one.duration_ms,
        cpu_usec: one.cpu_usec,
    });
    Ok(Json(Usage {
        from: from_ms.map(rfc3339),
        to: rfc3339(to_ms),
        agents: agents.collect(),
        metered: metered.into_iter().map(Metered::from).collect(),
        next_cursor,
    }))
}
