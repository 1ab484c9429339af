//! `/execute` and `/contexts`: requests and answers. Errors are plain text,
//! as E2B's clients show them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_protocol::{CODE_KEEPALIVE, WARM_ROUTE};
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
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::Interpreter;
use super::context::{Context, Turn, Use};
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

    fn too_many() -> Self {
        Self::of_kernel(format!(
            "there are {CONTEXTS_MAX} contexts already\nhint: remove one that is not needed any more"
        ))
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
        .route(WARM_ROUTE, post(warm))
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
            interpreter
                .default_context(&language)
                .ok_or_else(Refusal::too_many)?
        }
    };
    let env = body.env_vars.unwrap_or_default();
    context
        .language
        .check(env.iter())
        .map_err(Refusal::of_client)?;
    let code = Code {
        text: body.code,
        env,
        restores: interpreter.restores.load(Ordering::Relaxed),
    };
    let (client, lines) = mpsc::channel(LINES_WAITING_MAX);
    let turn = match context.free_turn() {
        // A kernel that cannot start is an answer of its own.
        Some(turn) => Some(occupied(&interpreter, &context, turn).await?),
        None => None,
    };
    tokio::spawn(run(interpreter, context, code, client, turn));
    Ok(streamed(lines))
}

/// A turn with a kernel on its seat. It is started also when whoever asked for
/// it goes away: the next one needs it too.
async fn occupied(
    interpreter: &Interpreter,
    context: &Arc<Context>,
    mut turn: Turn,
) -> Result<Turn, Refusal> {
    let (interpreter, context) = (interpreter.clone(), Arc::clone(context));
    let started = tokio::spawn(async move {
        let occupied = context.occupy(&mut turn, &interpreter.starter).await;
        if occupied.is_err() {
            interpreter.table.forget(&context);
        }
        (turn, occupied)
    });
    let (turn, occupied) = started.await.map_err(Refusal::of_kernel)?;
    occupied.map_err(Refusal::of_kernel)?;
    Ok(turn)
}

/// Runs code when its turn has come, if it is not here already.
async fn run(
    interpreter: Interpreter,
    context: Arc<Context>,
    code: Code,
    client: mpsc::Sender<Bytes>,
    turn: Option<Turn>,
) {
    let mut turn = match turn {
        Some(turn) => turn,
        None => {
            let Some(turn) = waited(context.turn(), &client).await else {
                return;
            };
            let starting = occupied(&interpreter, &context, turn);
            match waited(starting, &client).await {
                Some(Ok(turn)) => turn,
                Some(Err(Refusal(_, why))) => {
                    let line = telling::error("ExecutionAborted", &why);
                    let _ = client.send(line).await;
                    let _ = client.send(telling::end()).await;
                    return;
                }
                None => return,
            }
        }
    };
    let sandbox_env = interpreter.starter.sandbox_env();
    let language = &context.language;
    let last = execution::run(&mut turn, language, &code, &sandbox_env, &client).await;
    // Who reads the last line may come again at once, and who does not read
    // keeps nobody waiting.
    drop(turn);
    for line in last.into_iter().chain([telling::end()]) {
        let _ = client.send(line).await;
    }
}

/// What is waited for, with signs of life; `None` when the client went away.
async fn waited<T>(awaited: impl Future<Output = T>, client: &mpsc::Sender<Bytes>) -> Option<T> {
    tokio::pin!(awaited);
    let mut silence = interval(CODE_KEEPALIVE);
    silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
    silence.reset();
    loop {
        tokio::select! {
            biased;
            () = client.closed() => return None,
            awaited = &mut awaited => return Some(awaited),
            _ = silence.tick() => {
                // Who has not read the last ones needs no more.
                let _ = client.try_send(telling::keepalive());
            }
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

/// `POST /warm`, for the host: answers when the kernel that most clients ask
/// for first has run code.
async fn warm(State(interpreter): State<Interpreter>) -> Result<Response, Refusal> {
    // The kernel comes also for a host that does not wait.
    let warmed = tokio::spawn(async move { interpreter.warm().await });
    let warmth = warmed.await.map_err(Refusal::of_kernel)?;
    Ok(Json(warmth.map_err(Refusal::of_kernel)?).into_response())
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
    // Before its kernel starts: whoever asks for many at once gets no more.
    interpreter
        .table
        .insert(
            Arc::clone(&context),
            &interpreter.starter.default_directory(),
        )
        .ok_or_else(Refusal::too_many)?;
    let reservation = Reservation {
        interpreter: interpreter.clone(),
        context: Some(Arc::clone(&context)),
    };
    let turn = context.turn().await;
    occupied(&interpreter, &context, turn).await?;
    reservation.keep();
    Ok(Json(context.view()).into_response())
}

/// A context that goes again unless its client learns of it.
struct Reservation {
    interpreter: Interpreter,
    context: Option<Arc<Context>>,
}

impl Reservation {
    fn keep(mut self) {
        self.context = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(context) = self.context.take()
            && self.interpreter.table.remove(&context.id).is_some()
        {
            // Nobody is left to be told.
            tokio::spawn(async move { context.remove().await });
        }
    }
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
    let removed = tokio::spawn(async move { context.remove().await });
    let removed = removed.await.map_err(Refusal::of_kernel)?;
    removed.map_err(Refusal::of_kernel)?;
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
