//! Who asks: `X-API-Key`, or `Authorization: Bearer` with the same key.

use atoll_control::identity::{AuthenticationError, Caller, Role};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};

use super::Plane;
use super::answer::ApiError;

/// Names of agent and task that a caller says it acts for.
pub(super) const AGENT: &str = "atoll-agent-id";
pub(super) const TASK: &str = "atoll-task-id";
/// Longest such name.
pub(super) const NAME_LEN_MAX: usize = 128;

/// Who asked, and with which key.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    /// In whose name everything is looked for.
    pub(crate) caller: Caller,
    /// The key as it was presented.
    pub(crate) key: String,
}

/// Lets a request through that carries a valid key.
pub(crate) async fn authenticate(
    State(plane): State<Plane>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(key) = presented(request.headers()) else {
        return refused("a request needs an API key: send it as `X-API-Key`").into_response();
    };
    match plane.keys.authenticate(&key).await {
        Ok(caller) => {
            let agent = name_in(request.headers(), AGENT);
            let task = name_in(request.headers(), TASK);
            let caller = caller.on_behalf_of(agent, task);
            request.extensions_mut().insert(Asker { caller, key });
            next.run(request).await
        }
        Err(AuthenticationError::Refused(why)) => {
            tracing::debug!("a key was refused: {why:?}");
            refused("the API key is not valid").into_response()
        }
        Err(error) => ApiError::internal(&error).into_response(),
    }
}

/// Lets a request through whose key is at least a `least`.
pub(crate) async fn admit(least: Role, request: Request, next: Next) -> Response {
    let asker = request.extensions().get::<Asker>();
    match asker.map(|asker| asker.caller.role) {
        Some(role) if role >= least => next.run(request).await,
        Some(role) => ApiError::new(StatusCode::FORBIDDEN, too_little(role, least)).into_response(),
        None => refused("a request needs an API key: send it as `X-API-Key`").into_response(),
    }
}

/// What is said to who may not.
pub(super) fn too_little(role: Role, least: Role) -> String {
    format!("the key is for the role `{role}`, and this takes `{least}`")
}

fn refused(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// The one key that the headers present. Two of a kind are none: whoever looks
/// at the request on its way may have read the other one.
pub(super) fn presented(headers: &HeaderMap) -> Option<String> {
    let single = |name: &str| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().map(str::to_owned),
            _ => None,
        }
    };
    if headers.contains_key("x-api-key") {
        return single("x-api-key");
    }
    let value = single(header::AUTHORIZATION.as_str())?;
    let (scheme, key) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| key.trim().to_owned())
}

fn name_in(headers: &HeaderMap, name: &str) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    (1..=NAME_LEN_MAX)
        .contains(&text.len())
        .then(|| text.to_owned())
}

impl<S: Sync> FromRequestParts<S> for Asker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        // A route whose rule asks for no key has nobody to ask for.
        let asker = parts.extensions.get::<Self>().cloned();
        asker.ok_or_else(|| refused("a request needs an API key: send it as `X-API-Key`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, http::HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn a_key_comes_once_and_in_one_of_two_ways() {
        let key = |pairs: &[(&'static str, &'static str)]| presented(&headers(pairs));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(key(&[("x-api-key", "a")]), some("a"));
        assert_eq!(key(&[("authorization", "Bearer a")]), some("a"));
        assert_eq!(key(&[("authorization", "bearer a")]), some("a"));
        assert_eq!(
            key(&[("x-api-key", "a"), ("authorization", "Bearer b")]),
            some("a")
        );
        for none in [
            &[][..],
            &[("authorization", "Basic a")],
            &[("authorization", "a")],
            &[("x-api-key", "a"), ("x-api-key", "b")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer b")],
        ] {
            assert_eq!(key(none), None, "{none:?}");
        }
    }
}
