//! `/api/v1/sandboxes`: make, look, list, end, share; and all of all tenants.

use std::time::Duration;

use atoll_control::executions::PlaceError;
use atoll_control::lifecycle::{
    CreateWish, Egress, IdempotencyKey, PauseMode, SandboxView, Traffic,
};
use atoll_store::db::{Cursor, Order, SandboxQuery, SandboxState, TombstoneQuery};
use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};

use super::super::Plane;
use super::identity::Requester;
use super::problem::{ErrorCode, Problem};
use super::request::{Body, Named, NamedTwice, Params, cursor_text, wrong};
use super::wire::{NewGrant, NewSandbox, SandboxBody, SandboxList, SandboxStatus};

/// What is used when nobody names a template.
pub(super) const TEMPLATE: &str = "base";
/// How long a sandbox lives when nothing is said.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Longest name of an agent.
const AGENT_LEN_MAX: usize = 128;

pub(in super::super) async fn create_sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    headers: HeaderMap,
    Body(body): Body<NewSandbox>,
) -> Result<(StatusCode, Json<SandboxBody>), Problem> {
    for name in [&body.agent_id, &body.task_id].into_iter().flatten() {
        check_name(name)?;
    }
    let caller = requester.on_behalf_of(body.agent_id.as_deref(), body.task_id.as_deref())?;
    let key = match headers.get("idempotency-key") {
        None => None,
        Some(value) => {
            let key = IdempotencyKey::parse(value.to_str().unwrap_or_default());
            Some(key.map_err(|error| Problem::invalid(error.to_string()))?)
        }
    };
    let longest = plane.lifecycle.settings().lifetime_max;
    let wish = CreateWish {
        template: body.template.unwrap_or_else(|| TEMPLATE.to_owned()),
        timeout: body
            .timeout_s
            .map_or(TIMEOUT.min(longest), Duration::from_secs),
        metadata: body.metadata,
        environment: body.environment,
        limits: body.limits.unwrap_or_default().into(),
        traffic: traffic(body.internet),
        pauses: false,
        pause_mode: PauseMode::Full,
        auto_resumes: false,
        client: "atoll rest".to_owned(),
    };
    let created = plane.lifecycle.create(&caller, wish, key).await?;
    Ok((StatusCode::CREATED, Json(created.view.into())))
}

/// What a sandbox may reach, as far as `/api/v1` says it.
pub(super) fn traffic(internet: Option<bool>) -> Traffic {
    Traffic {
        egress: Egress {
            internet,
            ..Egress::default()
        },
        ..Traffic::default()
    }
}

/// A name as headers and rows can hold it.
pub(super) fn check_name(name: &str) -> Result<(), Problem> {
    let is_name = (1..=AGENT_LEN_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if is_name {
        Ok(())
    } else {
        let message = format!("a name has 1 to {AGENT_LEN_MAX} bytes and no control characters");
        Err(Problem::invalid(message))
    }
}

/// A sandbox that is there, or how it ended.
pub(in super::super) async fn sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<SandboxBody>, Problem> {
    let caller = &requester.caller;
    match plane.places.row(caller, &id).await {
        Ok(row) if matches!(row.state, SandboxState::Creating) => {
            Err(Problem::not_found("sandbox"))
        }
        Ok(row) => Ok(Json(SandboxView::try_from(row)?.into())),
        Err(PlaceError::NotFound) => {
            let stone = plane.database.tombstone(caller.tenant, &id).await?;
            let stone = stone.ok_or_else(|| Problem::not_found("sandbox"))?;
            match (&caller.agent_id, &stone.agent_id) {
                (Some(agent), Some(owner)) if agent != owner => Err(PlaceError::OtherAgent.into()),
                _ => Ok(Json(stone.into())),
            }
        }
        Err(error) => Err(error.into()),
    }
}

pub(in super::super) async fn list_sandboxes(
    State(plane): State<Plane>,
    requester: Requester,
    params: Params,
) -> Result<Json<SandboxList>, Problem> {
    let status = match params.text("status") {
        None => None,
        Some(word) => Some(SandboxStatus::parse(word).ok_or_else(|| wrong("status", word))?),
    };
    // An agent sees its own.
    let agent = params
        .owned("agent_id")
        .or_else(|| requester.caller.agent_id.clone());
    if let Some(own) = &requester.caller.agent_id
        && agent.as_ref() != Some(own)
    {
        let message = "an agent sees its own sandboxes only";
        return Err(Problem::new(ErrorCode::Forbidden, message));
    }
    let states: &[SandboxState] = match status {
        Some(SandboxStatus::Running) => &[SandboxState::Running, SandboxState::Resuming],
        Some(SandboxStatus::Paused) => &[SandboxState::Paused, SandboxState::Pausing],
        None => &[
            SandboxState::Running,
            SandboxState::Resuming,
            SandboxState::Paused,
            SandboxState::Pausing,
        ],
        Some(wanted @ (SandboxStatus::Error | SandboxStatus::Stopped)) => {
            return ended(&plane, &requester, &params, (agent, wanted)).await;
        }
    };
    let mut query = SandboxQuery::new(states, params.limit()?);
    query.agent_id = agent;
    query.task_id = params.owned("task_id");
    if let Some(text) = params.text("cursor") {
        let cursor = Cursor::parse(text, Order::Descending);
        query.after = Some(cursor.map_err(|_| wrong("cursor", text))?);
    }
    let (page, next) = plane.lifecycle.list(&requester.caller, query).await?;
    Ok(Json(SandboxList {
        sandboxes: page.into_iter().map(SandboxBody::from).collect(),
        next_cursor: next.map(|next| next.to_string()),
    }))
}

/// Sandboxes that ended.
async fn ended(
    plane: &Plane,
    requester: &Requester,
    params: &Params,
    (agent_id, wanted): (Option<String>, SandboxStatus),
) -> Result<Json<SandboxList>, Problem> {
    let limit = params.limit()?;
    let mut query = TombstoneQuery {
        agent_id,
        task_id: params.owned("task_id"),
        limit,
        after: params.cursor()?,
    };
    let mut sandboxes = Vec::new();
    loop {
        let tenant = requester.caller.tenant;
        let mut stones = plane.database.list_tombstones(tenant, &query).await?;
        let has_more = stones.len() > limit;
        stones.truncate(limit);
        for stone in stones {
            query.after = Some((stone.ended_at_ms, stone.sandbox_id.clone()));
            let body = SandboxBody::from(stone);
            if body.status == wanted {
                sandboxes.push(body);
            }
            if sandboxes.len() == limit {
                break;
            }
        }
        if !has_more || sandboxes.len() == limit {
            let next_cursor = has_more
                .then(|| query.after.as_ref().map(cursor_text))
                .flatten();
            return Ok(Json(SandboxList {
                sandboxes,
                next_cursor,
            }));
        }
    }
}

pub(in super::super) async fn delete_sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<StatusCode, Problem> {
    let row = plane.places.own_row(&requester.caller, &id).await?;
    plane
        .lifecycle
        .kill(&requester.caller, &row.sandbox_id)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(in super::super) async fn let_in_sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    body: Result<Body<NewGrant>, Problem>,
) -> Result<StatusCode, Problem> {
    plane.places.row(&requester.caller, &id).await?;
    let Body(NewGrant { agent_id }) = body?;
    check_name(&agent_id)?;
    plane
        .places
        .let_in(&requester.caller, &id, &agent_id)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(in super::super) async fn shut_out_of_sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    NamedTwice(id, agent): NamedTwice,
) -> Result<StatusCode, Problem> {
    plane
        .places
        .shut_out(&requester.caller, &id, &agent)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sandboxes of all tenants, for who runs the server: the table of routes asks
/// for an admin's key.
pub(in super::super) async fn list_all(
    State(plane): State<Plane>,
    params: Params,
) -> Result<Json<SandboxList>, Problem> {
    let (limit, after) = (params.limit()?, params.text("cursor"));
    let mut rows = plane
        .database
        .sandboxes_of_node(plane.database.node())
        .await?;
    rows.retain(|row| {
        !matches!(row.state, SandboxState::Creating)
            && after.is_none_or(|after| row.sandbox_id.as_str() > after)
    });
    rows.sort_by(|one, other| one.sandbox_id.cmp(&other.sandbox_id));
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|row| row.sandbox_id.clone());
    let mut sandboxes = Vec::with_capacity(rows.len());
    for row in rows {
        let tenant = row.tenant_id.to_string();
        let mut body = SandboxBody::from(SandboxView::try_from(row)?);
        body.tenant_id = Some(tenant);
        sandboxes.push(body);
    }
    Ok(Json(SandboxList {
        sandboxes,
        next_cursor: last.filter(|_| has_more),
    }))
}
