//! Who asks, and the id by which a request is found in the log.

use atoll_control::identity::{AuthenticationError, Caller, GrantError, KeyLifeline, Role};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use uuid::Uuid;

use super::super::Plane;
use super::super::authentication::{AGENT, NAME_LEN_MAX, TASK, presented, too_little};
use super::problem::{ErrorCode, Problem};

/// Header with the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that a client may choose.
const REQUEST_ID_LEN_MAX: usize = 64;

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that is being answered.
pub(super) fn request_id() -> String {
    CURRENT
        .try_with(Clone::clone)
        .unwrap_or_else(|_| Uuid::new_v4().to_string())
}

/// Gives a request an id: the client's, if it has one.
pub(in super::super) async fn with_request_id(request: Request, next: Next) -> Response {
    let chosen = request.headers().get(REQUEST_ID);
    let chosen = chosen.and_then(|value| value.to_str().ok()).filter(|id| {
        (1..=REQUEST_ID_LEN_MAX).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    let id = chosen.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
    let mut response = CURRENT.scope(id.clone(), next.run(request)).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Who asked.
#[derive(Debug, Clone)]
pub(in super::super) struct Requester {
    pub(super) caller: Caller,
}

/// Lets a request through that carries a valid key.
pub(in super::super) async fn authenticate(
    State(plane): State<Plane>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(key) = presented(request.headers()) else {
        return Problem::new(ErrorCode::Unauthorized, "the request has no key").into_response();
    };
    let caller = match plane.keys.authenticate(&key).await {
        Ok(caller) => caller,
        Err(AuthenticationError::Refused(why)) => {
            tracing::debug!("a key was refused: {why:?}");
            return Problem::new(ErrorCode::Unauthorized, "the key is not valid").into_response();
        }
        Err(error) => return Problem::internal(&error).into_response(),
    };
    let names = (name_in(&request, AGENT), name_in(&request, TASK));
    let (agent, task) = match names {
        (Ok(agent), Ok(task)) => (agent, task),
        (Err(problem), _) | (_, Err(problem)) => return problem.into_response(),
    };
    let caller = caller.on_behalf_of(agent, task);
    request.extensions_mut().insert(Requester { caller });
    next.run(request).await
}

/// Lets a request through whose key is at least a `least`.
pub(in super::super) async fn admit(least: Role, request: Request, next: Next) -> Response {
    let requester = request.extensions().get::<Requester>();
    match requester.map(|requester| requester.caller.role) {
        Some(role) if role >= least => next.run(request).await,
        Some(role) => Problem::new(ErrorCode::Forbidden, too_little(role, least)).into_response(),
        None => Problem::new(ErrorCode::Unauthorized, "the request has no key").into_response(),
    }
}

/// A name that must be one if it is there: who is taken for nobody may more.
fn name_in(request: &Request, name: &str) -> Result<Option<String>, Problem> {
    let mut values = request.headers().get_all(name).iter();
    let (Some(value), rest) = (values.next(), values.next()) else {
        return Ok(None);
    };
    let text = value.to_str().ok().filter(|text| {
        (1..=NAME_LEN_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
    });
    match (text, rest) {
        (Some(text), None) => Ok(Some(text.to_owned())),
        _ => Err(Problem::invalid(format!(
            "the header '{name}' comes once, with 1 to {NAME_LEN_MAX} characters"
        ))),
    }
}

/// Tells when the key of a requester is over, for what takes long.
pub(super) async fn lifeline(plane: &Plane, requester: &Requester) -> Result<KeyLifeline, Problem> {
    match plane.lifecycle.follow_events(&requester.caller).await {
        Ok((_, lifeline)) => Ok(lifeline),
        Err(GrantError::NotFound) => Err(Problem::new(
            ErrorCode::Unauthorized,
            "the key is not valid",
        )),
        Err(GrantError::Database(error)) => Err(error.into()),
    }
}

impl Requester {
    /// The caller on behalf of the agent and task that a body names.
    pub(super) fn on_behalf_of(
        &self,
        agent: Option<&str>,
        task: Option<&str>,
    ) -> Result<Caller, Problem> {
        let same = |said: Option<&str>, header: Option<&String>, what: &str| match (said, header) {
            (Some(said), Some(header)) if said != header => Err(Problem::new(
                ErrorCode::Forbidden,
                format!("the header names another {what} than the body"),
            )),
            (Some(said), _) => Ok(Some(said.to_owned())),
            (None, header) => Ok(header.cloned()),
        };
        let agent = same(agent, self.caller.agent_id.as_ref(), "agent")?;
        let task = same(task, self.caller.task_id.as_ref(), "task")?;
        Ok(self.caller.clone().on_behalf_of(agent, task))
    }
}

impl<S: Sync> FromRequestParts<S> for Requester {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let requester = parts.extensions.get::<Self>().cloned();
        requester.ok_or_else(|| Problem::new(ErrorCode::Unauthorized, "the request has no key"))
    }
}
