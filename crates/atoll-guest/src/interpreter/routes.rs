//! `/execute` and `/contexts`: requests and answers. Errors are plain text,
//! as E2B's clients show them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use atoll_protocol::CODE_KEEPALIVE;
use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde::Deserialize;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use super::Interpreter;
use super::context::{Context, Seat, Use};
use super::execution::{self, Code};
use super::language::Language;
use super::table::CONTEXTS_MAX;
use super::telling;

/// Longest body: code and variables.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Lines that wait for a client.
const LINES_WAITING_MAX: usize = 8;

#[derive(Debug, Deserialize)]
struct ExecuteBody {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize, Default)]
struct ContextBody {
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    cwd: Option<String>,
}

/// A refusal in plain text.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl Refusal {
    fn of_client(what: impl std::fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, what.to_string())
    }

    fn of_kernel(what: impl std::fmt::Display) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, what.to_string())
    }

    fn no_context(id: &str) -> Self {
        let id: String = id.chars().take(100).collect();
        Self(StatusCode::NOT_FOUND, format!("Context {id} not found"))
    }
}

/// All routes.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(interpreter: Interpreter) -> Router<S> {
    Router::new()
        .route("/execute", post(execute))
        .route("/contexts", get(list).post(create))
        .route("/contexts/{id}", delete(remove))
        .route("/contexts/{id}/restart", post(restart))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(interpreter)
}

async fn execute(
    State(interpreter): State<Interpreter>,
    body: Result<Json<ExecuteBody>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(body) = body.map_err(unreadable)?;
    let context = match (&body.context_id, &body.language) {
        (Some(_), Some(_)) => {
            return Err(Refusal::of_client(
                "Only one of context_id or language can be provided",
            ));
        }
        (Some(id), None) => interpreter
            .table
            .get(id)
            .ok_or_else(|| Refusal::no_context(id))?,
        (None, language) => {
            let language = parsed(language.as_deref())?;
            interpreter.default_context(&language)
        }
    };
    let env = body.env_vars.unwrap_or_default();
    context
        .language
        .check(env.keys())
        .map_err(Refusal::of_client)?;
    let code = Code {
        text: body.code,
        env,
    };
    let (client, lines) = mpsc::channel(LINES_WAITING_MAX);
    match context.free_seat() {
        // A kernel that cannot start is an answer of its own.
        Some(seat) => {
            let seat = occupied(&interpreter, &context, seat).await?;
            tokio::spawn(run(interpreter, context, code, client, Turn::Here(seat)));
        }
        None => {
            tokio::spawn(run(interpreter, context, code, client, Turn::Later));
        }
    }
    Ok(streamed(lines))
}

/// The seat with a kernel on it. It is started also when whoever asked for it
/// goes away: the next one needs it too.
async fn occupied(
    interpreter: &Interpreter,
    context: &Arc<Context>,
    mut seat: OwnedMutexGuard<Seat>,
) -> Result<OwnedMutexGuard<Seat>, Refusal> {
    let (starter, context) = (Arc::clone(&interpreter.starter), Arc::clone(context));
    let started = tokio::spawn(async move {
        let occupied = context.occupy(&mut seat, &starter).await;
        (seat, occupied)
    });
    let (seat, occupied) = started.await.map_err(Refusal::of_kernel)?;
    occupied.map_err(Refusal::of_kernel)?;
    Ok(seat)
}

/// Whose turn it is.
enum Turn {
    /// The client's.
    Here(OwnedMutexGuard<Seat>),
    /// Somebody else's.
    Later,
}

async fn run(
    interpreter: Interpreter,
    context: Arc<Context>,
    code: Code,
    client: mpsc::Sender<Bytes>,
    turn: Turn,
) {
    let mut seat = match turn {
        Turn::Here(seat) => seat,
        Turn::Later => {
            let Some(mut seat) = waited(&context, &client).await else {
                return;
            };
            if let Err(error) = context.occupy(&mut seat, &interpreter.starter).await {
                let line = telling::error("ExecutionAborted", &error.to_string());
                let _ = client.send(line).await;
                let _ = client.send(telling::end()).await;
                return;
            }
            seat
        }
    };
    let sandbox_env = interpreter.starter.sandbox_env();
    let language = &context.language;
    execution::run(&mut seat, language, &code, &sandbox_env, &client).await;
    // Who reads the last line may come again at once.
    drop(seat);
    let _ = client.send(telling::end()).await;
}

/// The seat, when the client's turn has come; `None` when it went away.
async fn waited(context: &Context, client: &mpsc::Sender<Bytes>) -> Option<OwnedMutexGuard<Seat>> {
    let seat = context.seat();
    tokio::pin!(seat);
    let mut silence = interval(CODE_KEEPALIVE);
    silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
    silence.reset();
    loop {
        tokio::select! {
            biased;
            () = client.closed() => return None,
            seat = &mut seat => return Some(seat),
            _ = silence.tick() => client.send(telling::keepalive()).await.ok()?,
        }
    }
}

fn streamed(lines: mpsc::Receiver<Bytes>) -> Response {
    let lines = unfold(lines, |mut lines| async move {
        let line = lines.recv().await?;
        Some((Ok::<_, Infallible>(line), lines))
    });
    (
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}

async fn list(State(interpreter): State<Interpreter>) -> Response {
    let contexts = interpreter
        .table
        .all(&interpreter.starter.default_directory());
    let views: Vec<_> = contexts.iter().map(|context| context.view()).collect();
    Json(views).into_response()
}

async fn create(
    State(interpreter): State<Interpreter>,
    body: Result<Json<ContextBody>, JsonRejection>,
) -> Result<Response, Refusal> {
    let Json(body) = body.map_err(unreadable)?;
    let language = parsed(body.language.as_deref())?;
    let cwd = match body.cwd {
        Some(cwd) if !cwd.is_empty() => cwd,
        Some(_) | None => interpreter.starter.default_directory(),
    };
    let context = Arc::new(Context::new(language, cwd, Use::Named));
    if let Some(seat) = context.free_seat() {
        occupied(&interpreter, &context, seat).await?;
    }
    if interpreter.table.insert(Arc::clone(&context)).is_none() {
        context.remove().await;
        return Err(Refusal::of_kernel(format!(
            "there are {CONTEXTS_MAX} contexts already\nhint: remove one that is not needed any more"
        )));
    }
    Ok(Json(context.view()).into_response())
}

async fn restart(
    State(interpreter): State<Interpreter>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let context = interpreter
        .table
        .get(&id)
        .ok_or_else(|| Refusal::no_context(&id))?;
    let starter = Arc::clone(&interpreter.starter);
    let restarted = tokio::spawn(async move { context.restart(&starter).await });
    let restarted = restarted.await.map_err(Refusal::of_kernel)?;
    restarted.map_err(Refusal::of_kernel)?;
    Ok(Json(()).into_response())
}

async fn remove(
    State(interpreter): State<Interpreter>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let context = interpreter
        .table
        .remove(&id)
        .ok_or_else(|| Refusal::no_context(&id))?;
    tokio::spawn(async move { context.remove().await })
        .await
        .map_err(Refusal::of_kernel)?;
    Ok(Json(()).into_response())
}

fn parsed(language: Option<&str>) -> Result<Language, Refusal> {
    match language {
        None | Some("") => Ok(Language::Python),
        Some(name) => Language::parse(name).map_err(Refusal::of_client),
    }
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "the shape that `map_err` wants"
)]
fn unreadable(rejection: JsonRejection) -> Refusal {
    Refusal(rejection.status(), rejection.body_text())
}
