//! `POST …/execute` in a sandbox and in a session, and `POST …/packages`.

use std::sync::Arc;

use atoll_control::executions::{ExecutionWish, LiveExecution, Place};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode, header};

use super::super::Plane;
use super::events;
use super::identity::Requester;
use super::problem::Problem;
use super::request::{Body, Named};
use super::sessions::session_id;
use super::wire::RecoveredBody;
use super::wire_execution::{Execute, ExecutionBody, InstallPackages, Mode};

pub(in super::super) async fn in_sandbox(
    State(plane): State<Plane>,
    requester: Requester,
    Named(sandbox): Named,
    body: Result<Body<Execute>, Problem>,
) -> Result<Response, Problem> {
    // Who may not see the sandbox learns nothing else.
    let place = plane.places.find(&requester.caller, &sandbox).await?;
    let (wish, mode) = body?.0.wish()?;
    run(&plane, &requester, place, wish, mode).await
}

pub(in super::super) async fn in_session(
    State(plane): State<Plane>,
    requester: Requester,
    Named(session): Named,
    Body(body): Body<Execute>,
) -> Result<Response, Problem> {
    let (wish, mode) = body.wish()?;
    wish.check()
        .map_err(|error| Problem::invalid(error.to_string()))?;
    let id = session_id(&session)?;
    let beginning = plane
        .sessions
        .begin(&plane.executions, &requester.caller, id, wish);
    let (acquired, live) = beginning.await?;
    let recovered = acquired.recovered.clone().map(RecoveredBody::from);
    let answer = answer(&plane, &requester, live, (mode, recovered)).await?;
    // Who fails or hangs up before this leaves it to the next call.
    plane.sessions.told(id, acquired.recovered.as_ref());
    Ok(answer)
}

pub(in super::super) async fn packages(
    State(plane): State<Plane>,
    requester: Requester,
    Named(sandbox): Named,
    body: Result<Body<InstallPackages>, Problem>,
) -> Result<Response, Problem> {
    let place = plane.places.find(&requester.caller, &sandbox).await?;
    let (wish, mode) = body?.0.wish();
    run(&plane, &requester, place, wish, mode).await
}

async fn run(
    plane: &Plane,
    requester: &Requester,
    place: Place,
    wish: ExecutionWish,
    mode: Mode,
) -> Result<Response, Problem> {
    let beginning = plane.executions.begin(&requester.caller, &place, wish);
    answer(plane, requester, beginning.await?, (mode, None)).await
}

async fn answer(
    plane: &Plane,
    requester: &Requester,
    live: Arc<LiveExecution>,
    (mode, recovered): (Mode, Option<RecoveredBody>),
) -> Result<Response, Problem> {
    let body = |state| {
        let mut body = ExecutionBody::from(state);
        body.recovered.clone_from(&recovered);
        body
    };
    match mode {
        Mode::Sync => {
            let mut waiting = Waiting(Some(Arc::clone(&live)));
            let state = live.ended().await;
            waiting.0 = None;
            Ok(Json(body(state.as_ref().clone())).into_response())
        }
        Mode::Async => {
            // Who comes back for it finds it, whatever happens to the server until then.
            plane.executions.flush().await;
            let mut response = (StatusCode::ACCEPTED, Json(body(live.state()))).into_response();
            let place = format!("/api/v1/executions/{}", live.id());
            if let Ok(place) = HeaderValue::from_str(&place) {
                response.headers_mut().insert(header::LOCATION, place);
            }
            Ok(response)
        }
        Mode::Stream => events::stream(plane, requester, &live, 0, recovered).await,
    }
}

/// Somebody who waits for an execution; it ends when they hang up.
struct Waiting(Option<Arc<LiveExecution>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(live) = &self.0 {
            live.cancel();
        }
    }
}
