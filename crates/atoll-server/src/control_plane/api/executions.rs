//! `/api/v1/executions`: the history, one of it, its events, its end.

use std::time::Duration;

use atoll_control::executions::{ExecutionState, LiveExecution, may_use};
use atoll_control::identity::Caller;
use atoll_store::db::{
    DatabaseError, Execution, ExecutionId, ExecutionQuery, ExecutionStatus, GrantedObject,
};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;

use super::super::Plane;
use super::events;
use super::identity::Requester;
use super::problem::{ErrorCode, Problem};
use super::request::{Named, Params, cursor_text, wrong};
use super::wire_execution::{ExecutionBody, ExecutionList};

/// How long the end of what was cancelled is waited for.
const CANCEL_BOUND: Duration = Duration::from_secs(15);

pub(in super::super) async fn executions(
    State(plane): State<Plane>,
    requester: Requester,
    params: Params,
) -> Result<Json<ExecutionList>, Problem> {
    let status = match params.text("status") {
        None => None,
        Some(word) => Some(ExecutionStatus::parse(word).ok_or_else(|| wrong("status", word))?),
    };
    // An agent sees its own history.
    let own = requester.caller.agent_id.clone();
    if let (Some(own), Some(asked)) = (&own, params.text("agent_id"))
        && own != asked
    {
        let message = "an agent sees its own executions only";
        return Err(Problem::new(ErrorCode::Forbidden, message));
    }
    let query = ExecutionQuery {
        agent_id: params.owned("agent_id").or(own),
        task_id: params.owned("task_id"),
        session_id: params.owned("session_id"),
        sandbox_id: params.owned("sandbox_id"),
        status,
        from_ms: params.moment("from")?,
        to_ms: params.moment("to")?,
        limit: params.limit()?,
        after: params.cursor()?,
    };
    let (page, next) = plane.executions.list(&requester.caller, &query).await?;
    Ok(Json(ExecutionList {
        executions: page.into_iter().map(ExecutionBody::from).collect(),
        next_cursor: next.as_ref().map(cursor_text),
    }))
}

pub(in super::super) async fn execution(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<ExecutionBody>, Problem> {
    let state = find(&plane, &requester, execution_id(&id)?).await?;
    Ok(Json(state.into()))
}

/// Its events from the one after `Last-Event-ID` on.
pub(in super::super) async fn follow(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = execution_id(&id)?;
    let state = find(&plane, &requester, id).await?;
    let after = match headers.get("last-event-id") {
        None => params.value("last_event_id")?,
        Some(value) => {
            let text = value.to_str().unwrap_or("?");
            Some(text.parse().map_err(|_| wrong("Last-Event-ID", text))?)
        }
    };
    match plane.executions.live(&requester.caller, id) {
        Some(live) => {
            let after = number_of(&live, "Last-Event-ID", after)?;
            events::stream(&plane, &requester, &live, after, None).await
        }
        None => Ok(events::only_the_end(state)),
    }
}

/// The number of an event that somebody has seen; before all of them, if none.
/// One that was not given out is of something else: what follows it is not here.
pub(super) fn number_of(
    live: &LiveExecution,
    name: &str,
    number: Option<u64>,
) -> Result<u64, Problem> {
    let number = number.unwrap_or(0);
    if number > live.events().newest() {
        return Err(wrong(name, &number.to_string()));
    }
    Ok(number)
}

/// Ends it, and answers when it has ended.
pub(in super::super) async fn cancel(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
) -> Result<Json<ExecutionBody>, Problem> {
    let id = execution_id(&id)?;
    let state = find(&plane, &requester, id).await?;
    let live = plane.executions.live(&requester.caller, id);
    let live = live.filter(|_| state.execution.status == ExecutionStatus::Running);
    let Some(live) = live else {
        return Err(Problem::new(ErrorCode::Conflict, "the execution has ended"));
    };
    live.cancel();
    match tokio::time::timeout(CANCEL_BOUND, live.ended()).await {
        Ok(state) => Ok(Json(state.as_ref().clone().into())),
        Err(_) => Err(Problem::new(
            ErrorCode::SandboxUnavailable,
            "the execution was told to end, and has not yet",
        )),
    }
}

/// An execution that the requester may see.
pub(super) async fn find(
    plane: &Plane,
    requester: &Requester,
    id: ExecutionId,
) -> Result<ExecutionState, Problem> {
    let caller = &requester.caller;
    let found = plane.executions.get(caller, id).await?;
    let state = found.ok_or_else(|| Problem::not_found("execution"))?;
    if may_see(plane, caller, &state.execution).await? {
        Ok(state)
    } else {
        let message = "the execution belongs to another agent";
        Err(Problem::new(ErrorCode::Forbidden, message))
    }
}

/// Whether `caller` may see an execution: its own, and what runs where it may
/// work. What an agent runs in a place of another is out of its sight as soon as it
/// is shut out there; afterwards it is part of its history.
pub(super) async fn may_see(
    plane: &Plane,
    caller: &Caller,
    row: &Execution,
) -> Result<bool, DatabaseError> {
    let Some(agent) = &caller.agent_id else {
        return Ok(true);
    };
    let is_own = row.agent_id.as_ref() == Some(agent);
    if is_own && row.status != ExecutionStatus::Running {
        return Ok(true);
    }
    let (owner, object) = match &row.session_id {
        Some(session) => {
            let object = GrantedObject::Session(session);
            (owner_of_session(plane, caller, session).await?, object)
        }
        None => {
            let object = GrantedObject::Sandbox(&row.sandbox_id);
            let owner = owner_of_sandbox(plane, caller, &row.sandbox_id).await?;
            (owner, object)
        }
    };
    match owner {
        Owner::Agent(owner) => may_use(&plane.database, caller, Some(&owner), object).await,
        // Of everybody, and of nobody in particular: so is what names no agent.
        Owner::Tenant => Ok(is_own || row.agent_id.is_none()),
        Owner::Unknown => Ok(is_own),
    }
}

/// Whose the place of an execution is.
enum Owner {
    Agent(String),
    Tenant,
    /// It is gone for so long that nobody knows.
    Unknown,
}

async fn owner_of_session(
    plane: &Plane,
    caller: &Caller,
    session: &str,
) -> Result<Owner, DatabaseError> {
    let Ok(id) = session.parse() else {
        return Ok(Owner::Unknown);
    };
    let session = plane.database.session(caller.tenant, id).await?;
    Ok(session.map_or(Owner::Unknown, |session| Owner::Agent(session.agent_id)))
}

async fn owner_of_sandbox(
    plane: &Plane,
    caller: &Caller,
    sandbox: &str,
) -> Result<Owner, DatabaseError> {
    let owner = match plane.database.sandbox(caller.tenant, sandbox).await? {
        Some(row) => Some(row.agent_id),
        None => {
            let stone = plane.database.tombstone(caller.tenant, sandbox).await?;
            stone.map(|stone| stone.agent_id)
        }
    };
    Ok(match owner {
        Some(Some(agent)) => Owner::Agent(agent),
        Some(None) => Owner::Tenant,
        None => Owner::Unknown,
    })
}

/// What cannot be an id is one that nobody has.
pub(super) fn execution_id(text: &str) -> Result<ExecutionId, Problem> {
    text.parse().map_err(|_| Problem::not_found("execution"))
}
