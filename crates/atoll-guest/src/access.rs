//! Who may ask: everybody `/health`, the host `/init`, and after that only
//! requests that present the token, or for `/files` a signature by its holder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_protocol::signature::{Operation, SignatureError, SignedUrl};
use atoll_protocol::{ACCESS_TOKEN_HEADER, InitRequest, UnkeptWishes};
use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tokio::time::timeout;

use crate::boot::connections::Standing;
use crate::boot::is_init;
use crate::files::{FileQuery, refuse};
use crate::interpreter::Interpreter;
use crate::settings::{Access, Settings};

const UNAUTHORIZED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// Said where a signature would have been good enough, but a token was sent.
const WRONG_TOKEN: &str = "access token present in header but does not match";

/// Longest body of `/init`, and longest time for it.
const INIT_BYTES_MAX: usize = 1024 * 1024;
const INIT_BOUND: Duration = Duration::from_secs(5);

/// Body of every error outside of RPC.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    code: u16,
    message: &'a str,
}

/// An error answer outside of RPC.
pub(crate) fn error_response(status: StatusCode, message: &str) -> Response {
    (
        status,
        Json(ErrorBody {
            code: status.as_u16(),
            message,
        }),
    )
        .into_response()
}

/// Lets a request pass when it presents the token.
pub(crate) async fn require_token(
    State(settings): State<Arc<Settings>>,
    request: Request,
    next: Next,
) -> Response {
    match settings.check(presented_token(request.headers())) {
        Access::Granted => {
            trust(&request);
            next.run(request).await
        }
        Access::Denied | Access::Uninitialized => refuse(request, unauthorized(UNAUTHORIZED)).await,
    }
}

/// Keeps the connection of a request, whoever else connects.
fn trust(request: &Request) {
    if let Some(standing) = request.extensions().get::<Standing>() {
        standing.trust();
    }
}

fn unauthorized(message: &str) -> Response {
    error_response(StatusCode::UNAUTHORIZED, message)
}

/// What a request for `/files` was admitted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The token: whoever has it may be anybody.
    Token,
    /// A signature of a URL: nothing but that URL says who asks.
    Signature,
}

/// Lets a request for `/files` pass when it presents the token or, without
/// one, a signature of what it asks for. Handlers get what was checked.
pub(crate) async fn require_token_or_signature(
    State(settings): State<Arc<Settings>>,
    mut request: Request,
    next: Next,
) -> Response {
    let token = presented_token(request.headers()).filter(|token| !token.is_empty());
    let query = FileQuery::from_uri(request.uri());
    let admission = match (settings.check(token), token) {
        (Access::Granted, _) => Admission::Token,
        (Access::Uninitialized, _) => return unauthorized(UNAUTHORIZED),
        (Access::Denied, Some(_)) => return unauthorized(WRONG_TOKEN),
        (Access::Denied, None) => {
            let checked = match &query {
                Ok(query) => check_signature(&settings, request.method(), query),
                Err(_) => Err(SignatureError::Invalid),
            };
            if let Err(error) = checked {
                return unauthorized(&error.to_string());
            }
            Admission::Signature
        }
    };
    trust(&request);
    match query {
        Ok(query) => {
            request.extensions_mut().insert(query);
            request.extensions_mut().insert(admission);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

fn check_signature(
    settings: &Settings,
    method: &Method,
    query: &FileQuery,
) -> Result<(), SignatureError> {
    let operation = match *method {
        Method::GET | Method::HEAD => Operation::Read,
        Method::POST => Operation::Write,
        _ => return Err(SignatureError::Missing),
    };
    let signature = query.signature.as_deref().ok_or(SignatureError::Missing)?;
    let expiration = match query.signature_expiration.as_deref().map(str::parse) {
        None => None,
        Some(Ok(seconds)) => Some(seconds),
        Some(Err(_)) => return Err(SignatureError::Invalid),
    };
    let url = SignedUrl {
        path: query.path.as_deref().unwrap_or_default(),
        operation,
        user: query.username.as_deref().unwrap_or_default(),
        expiration,
    };
    // A clock before 1970 lets nothing expire late: it says the earliest time.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |passed| passed.as_secs());
    settings.verify(&url, signature, i64::try_from(now).unwrap_or(i64::MAX))
}

/// `GET /health`.
pub(crate) async fn health() -> Response {
    (
        StatusCode::NO_CONTENT,
        [(header::CACHE_CONTROL, "no-store")],
    )
        .into_response()
}

/// `POST /init`: the first call sets the token, later ones must present it.
pub(crate) async fn init(State(settings): State<Arc<Settings>>, request: Request) -> Response {
    let place = match settings.check(presented_token(request.headers())) {
        Access::Denied => return refuse(request, unauthorized(UNAUTHORIZED)).await,
        Access::Uninitialized => Some(settings.first_inits.enter()),
        Access::Granted => {
            trust(&request);
            None
        }
    };
    let turned_away = async {
        match &place {
            Some(place) => place.turned_away().await,
            None => std::future::pending().await,
        }
    };
    let (head, body) = request.into_parts();
    let body = tokio::select! {
        body = init_body(body) => body,
        () = turned_away => Err((
            StatusCode::SERVICE_UNAVAILABLE,
            "too many say the first /init at once".to_owned(),
        )),
    };
    let body = match body {
        Ok(body) => body,
        Err((status, message)) => return error_response(status, &message),
    };
    // Somebody else may have set the token meanwhile.
    let access = settings.check(presented_token(&head.headers));
    if access == Access::Denied {
        return unauthorized(UNAUTHORIZED);
    }
    let parsed: Result<InitRequest, _> = serde_json::from_slice(&body);
    let wishes: Result<UnkeptWishes, _> = serde_json::from_slice(&body);
    let (init, wishes) = match parsed.and_then(|init| Ok((init, wishes?))) {
        Ok(understood) => understood,
        Err(error) => {
            return error_response(
                StatusCode::BAD_REQUEST,
                &format!("the body of /init is not understood: {error}"),
            );
        }
    };
    if let Some(why) = wishes.refusal() {
        return error_response(StatusCode::BAD_REQUEST, why);
    }
    if access == Access::Uninitialized && init.access_token.as_deref().is_none_or(str::is_empty) {
        return error_response(
            StatusCode::BAD_REQUEST,
            "the first /init must set an access token",
        );
    }
    let is_warm = init.warm_kernels == Some(true);
    settings.apply(init);
    if is_warm && let Some(interpreter) = head.extensions.get::<Interpreter>() {
        let interpreter = interpreter.clone();
        // Who asks for the kernel is told why there is none.
        tokio::spawn(async move { interpreter.warm().await });
    }
    if is_init() {
        publish_identity(Path::new("/run/e2b"), &settings.env());
    }
    StatusCode::NO_CONTENT.into_response()
}

/// The body of `/init`, or why it is none.
async fn init_body(body: Body) -> Result<Bytes, (StatusCode, String)> {
    match timeout(INIT_BOUND, to_bytes(body, INIT_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err((
            StatusCode::BAD_REQUEST,
            format!(
                "the body of /init broke off or is longer than {INIT_BYTES_MAX} bytes: {error}"
            ),
        )),
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            "the body of /init takes too long".to_owned(),
        )),
    }
}

/// Writes what programs in the sandbox look for in order to learn where they
/// are, `/run/e2b/.E2B_SANDBOX` and its like. Only a convenience for them,
/// so a root that cannot be written to is no error.
fn publish_identity(directory: &Path, env: &BTreeMap<String, String>) {
    let _ = std::fs::create_dir_all(directory);
    for name in ["E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"] {
        if let Some(value) = env.get(name) {
            let _ = write_regular(&directory.join(format!(".{name}")), value);
        }
    }
}

/// Writes a file, and nothing that root of the sandbox may have put in its
/// place: a pipe would let us wait, and a link leads elsewhere.
fn write_regular(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// `GET /envs`.
pub(crate) async fn envs(State(settings): State<Arc<Settings>>) -> Response {
    Json(settings.env()).into_response()
}

fn presented_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers
        .get(ACCESS_TOKEN_HEADER)
        .map(axum::http::HeaderValue::as_bytes)
}

/// The user named by `Authorization: Basic base64("user:")`.
pub(crate) fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    decoded
        .split_once(':')
        .map(|(user, _)| user.to_owned())
        .filter(|user| !user.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_written_to_files_only() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name);
        let env = ["E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID", "OTHER"]
            .map(|name| (name.to_owned(), format!("value of {name}")));
        let env = BTreeMap::from(env);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            file(".E2B_SANDBOX"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        // Somebody who reads it would let us open it.
        let reader = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(file(".E2B_SANDBOX"))
            .unwrap();
        std::fs::write(file("elsewhere"), "kept").unwrap();
        std::os::unix::fs::symlink("elsewhere", file(".E2B_SANDBOX_ID")).unwrap();
        std::fs::write(file(".E2B_TEMPLATE_ID"), "a longer text than the new one").unwrap();
        publish_identity(place.path(), &env);
        let read = |name| std::fs::read_to_string(file(name)).unwrap();
        assert_eq!(
            (read("elsewhere"), read(".E2B_TEMPLATE_ID")),
            ("kept".to_owned(), "value of E2B_TEMPLATE_ID".to_owned())
        );
        let mut got = Vec::new();
        io::Read::read_to_end(&mut &reader, &mut got).unwrap();
        assert_eq!(got, b"");
        drop(reader);
        publish_identity(place.path(), &env);
        assert!(!file(".OTHER").exists());
    }

    #[test]
    fn the_user_comes_from_basic_authorization() {
        let user = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            basic_user(&headers)
        };
        assert_eq!(user("Basic dXNlcjo="), Some("user".to_owned()));
        assert_eq!(user("basic cm9vdDpwYXNz"), Some("root".to_owned()));
        assert_eq!(user("Basic Og=="), None);
        assert_eq!(user("Bearer dXNlcjo="), None);
        assert_eq!(user("Basic %%%"), None);
        assert_eq!(basic_user(&HeaderMap::new()), None);
    }
}
