//! `/api/v1/sessions`, and the completion of tasks.

use std::time::Duration;

use atoll_control::sessions::{Found, NewSession};
use atoll_store::db::{SessionId, SessionQuery};
use axum::Json;
use axum::extract::State;
use http::StatusCode;

use super::super::Plane;
use super::identity::Requester;
use super::problem::{ErrorCode, Problem};
use super::request::{Body, Named, NamedTwice, Params, cursor_text, wrong};
use super::sandboxes::{TEMPLATE, check_name, traffic};
use super::wire::{
    CompletedTask, GrantList, NewGrant, NewSessionBody, RecoveredBody, SessionBody, SessionList,
};

/// A new session (201), or the one that the agent has for this task (200).
pub(in super::super) async fn create_session(
    State(plane): State<Plane>,
    requester: Requester,
    Body(body): Body<NewSessionBody>,
) -> Result<(StatusCode, Json<SessionBody>), Problem> {
    let caller = requester.on_behalf_of(body.agent_id.as_deref(), body.task_id.as_deref())?;
    let agent_id = caller.agent_id.clone();
    let agent_id = agent_id.ok_or_else(|| Problem::invalid("a session needs an 'agent_id'"))?;
    let settings = plane.sessions.settings();
    let new = NewSession {
        agent_id,
        task_id: caller.task_id.clone(),
        user_id: body.user_id,
        template: body.template.unwrap_or_else(|| TEMPLATE.to_owned()),
        metadata: body.metadata,
        environment: body.environment,
        limits: body.limits.unwrap_or_default().into(),
        traffic: traffic(body.internet),
        idle: body
            .idle_timeout_s
            .map_or(settings.idle, Duration::from_secs),
        lifetime: body
            .lifetime_s
            .map_or(settings.lifetime, Duration::from_secs),
    };
    let gotten = plane.sessions.get_or_create(&caller, new).await?;
    let status = match gotten.found {
        Found::New => StatusCode::CREATED,
        Found::Earlier => StatusCode::OK,
    };
    let told = (gotten.session.session_id, gotten.recovered.as_ref());
    plane.sessions.told(told.0, told.1);
    let mut body = SessionBody::from(gotten.session);
    body.recovered = gotten.recovered.map(RecoveredBody::from);
    Ok((status, Json(body)))
}

pub(in super::super) async fn sessions(
    State(plane): State<Plane>,
    requester: Requester,
    params: Params,
) -> Result<Json<SessionList>, Problem> {
    let is_active = match params.text("status") {
        None => None,
        Some("active") => Some(true),
        Some("ended") => Some(false),
        Some(other) => return Err(wrong("status", other)),
    };
    let agent = params
        .owned("agent_id")
        .or_else(|| requester.caller.agent_id.clone());
    if let Some(own) = &requester.caller.agent_id
        && agent.as_ref() != Some(own)
    {
        let message = "an agent sees its own sessions only";
        return Err(Problem::new(ErrorCode::Forbidden, message));
    }
    let query = SessionQuery {
        agent_id: agent,
        task_id: params.owned("task_id"),
        is_active,
        limit: params.limit()?,
        after: params.cursor()?,
    };
    let (page, next) = plane.sessions.list(&requester.caller, &query).await?;
    Ok(Json(SessionList {
        sessions: page.into_iter().map(SessionBody::from).collect(),
        next_cursor: next.as_ref().map(cursor_text),
    }))
}

pub(in super::super) async fn session(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<SessionBody>, Problem> {
    let session = plane
        .sessions
        .get(&requester.caller, session_id(&id)?)
        .await?;
    Ok(Json(session.into()))
}

pub(in super::super) async fn delete_session(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<StatusCode, Problem> {
    plane
        .sessions
        .end(&requester.caller, session_id(&id)?)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(in super::super) async fn agents_of_session(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<GrantList>, Problem> {
    let agents = plane
        .sessions
        .agents(&requester.caller, session_id(&id)?)
        .await?;
    Ok(Json(GrantList { agents }))
}

pub(in super::super) async fn let_in_session(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    Body(NewGrant { agent_id }): Body<NewGrant>,
) -> Result<StatusCode, Problem> {
    check_name(&agent_id)?;
    let letting = plane
        .sessions
        .let_in(&requester.caller, session_id(&id)?, &agent_id);
    letting.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(in super::super) async fn shut_out_of_session(
    State(plane): State<Plane>,
    requester: Requester,
    NamedTwice(id, agent): NamedTwice,
) -> Result<StatusCode, Problem> {
    let shutting = plane
        .sessions
        .shut_out(&requester.caller, session_id(&id)?, &agent);
    shutting.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends everything that belongs to a task. Doing so twice is doing so once.
pub(in super::super) async fn complete_task(
    State(plane): State<Plane>,
    requester: Requester,
    Named(task_id): Named,
) -> Result<Json<CompletedTask>, Problem> {
    check_name(&task_id)?;
    let completed = plane
        .sessions
        .complete_task(&requester.caller, &task_id)
        .await?;
    Ok(Json(CompletedTask {
        task_id,
        sessions: completed.sessions,
        sandboxes: completed.sandboxes,
    }))
}

/// What cannot be an id is one that nobody has.
pub(super) fn session_id(text: &str) -> Result<SessionId, Problem> {
    text.parse().map_err(|_| Problem::not_found("session"))
}
