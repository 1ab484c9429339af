//! What of a client's request reaches the guest, and what of the guest's
//! answer reaches the client. Lists of what may pass: a name that is new or
//! written in another way does not.

use atoll_protocol::{CODE_PORT, ENVD_PORT, lane};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};

use crate::error::GuestError;

/// Headers of a request, besides `x-metadata-*`; the user's name is made anew,
/// see [`crate::user`].
/// Lengths are counted anew, and what belongs to one connection stays there.
static REQUEST_HEADERS: [HeaderName; 13] = [
    header::ACCEPT,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
    HeaderName::from_static("connect-content-encoding"),
    HeaderName::from_static("connect-protocol-version"),
    HeaderName::from_static("connect-timeout-ms"),
    HeaderName::from_static(atoll_protocol::KEEPALIVE_HEADER),
];

/// What clients write beside a file.
pub(crate) const METADATA_PREFIX: &str = "x-metadata-";

/// Headers of an answer. Nothing that would speak for the server: no cookies,
/// no redirects, no policies, and nothing about caches.
static ANSWER_HEADERS: [HeaderName; 9] = [
    header::ACCEPT_RANGES,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    HeaderName::from_static("connect-content-encoding"),
];

/// Longest id of a context.
const CONTEXT_ID_BYTES_MAX: usize = 64;

/// Most headers of a request that pass.
const REQUEST_HEADERS_MAX: usize = 64;

/// A request that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// One that changes nothing: `/health`, `/metrics`, `/envs`.
    Read,
    /// `GET /files`, which changes nothing either.
    Download,
    /// An upload.
    Write,
    /// A large file past HTTP: see [`atoll_protocol::lane`].
    Lane(Direction),
    /// A call of a service, with an answer at its end.
    Unary(Call),
    /// A call of a service that streams.
    Stream(Call),
    /// A request to the code interpreter.
    Code(CodeCall),
}

/// Which way a file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Out of the sandbox.
    Down,
    /// Into it.
    Up,
}

/// What of the guest a request is for. It serves both on one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Service {
    /// Commands and files.
    #[default]
    Envd,
    /// The code interpreter.
    Code,
}

impl Service {
    /// The route of a request to it, by its exact spelling.
    ///
    /// # Errors
    /// [`GuestError::NotForwarded`] for everything that has none.
    pub fn route(self, method: &Method, uri: &Uri) -> Result<Route, GuestError> {
        match self {
            Self::Envd => Route::of(method, uri),
            Self::Code => Route::of_code(method, uri),
        }
    }

    /// The port at which clients look for it.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Envd => ENVD_PORT,
            Self::Code => CODE_PORT,
        }
    }
}

/// Requests to the code interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeCall {
    /// `/execute`: a stream of lines, with a sign of life in silence.
    Execute,
    /// `/contexts`, read.
    List,
    /// `/contexts`, changed; the answer may wait for a kernel.
    Change,
}

/// What matters about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// It changes nothing.
    Looks,
    /// It changes something.
    Acts,
    /// Its answer waits until a command took its input.
    Waits,
}

const PROCESS_CALLS: &[(&str, Route)] = &[
    ("List", Route::Unary(Call::Looks)),
    ("Start", Route::Stream(Call::Acts)),
    ("Connect", Route::Stream(Call::Looks)),
    ("Update", Route::Unary(Call::Acts)),
    ("StreamInput", Route::Stream(Call::Waits)),
    ("SendInput", Route::Unary(Call::Waits)),
    ("SendSignal", Route::Unary(Call::Acts)),
    ("CloseStdin", Route::Unary(Call::Waits)),
];

const FILESYSTEM_CALLS: &[(&str, Route)] = &[
    ("Stat", Route::Unary(Call::Looks)),
    ("MakeDir", Route::Unary(Call::Acts)),
    ("Move", Route::Unary(Call::Acts)),
    ("ListDir", Route::Unary(Call::Looks)),
    ("Remove", Route::Unary(Call::Acts)),
    ("WatchDir", Route::Stream(Call::Looks)),
    ("CreateWatcher", Route::Unary(Call::Acts)),
    // It empties the watcher: a second try would lose what the first one took.
    ("GetWatcherEvents", Route::Unary(Call::Acts)),
    ("RemoveWatcher", Route::Unary(Call::Acts)),
];

impl Route {
    /// The route of a request, by its exact spelling.
    ///
    /// # Errors
    /// [`GuestError::NotForwarded`] for everything that has none.
    pub fn of(method: &Method, uri: &Uri) -> Result<Self, GuestError> {
        if uri.scheme().is_some() || uri.authority().is_some() {
            return Err(GuestError::NotForwarded("its target names a host"));
        }
        let path = uri.path();
        let call = |service: &str, calls: &[(&str, Self)]| {
            let name = path.strip_prefix(service)?;
            let (_, route) = calls.iter().find(|(known, _)| *known == name)?;
            Some(*route)
        };
        let (route, methods): (_, &[Method]) = match path {
            "/health" | "/metrics" | "/envs" => (Self::Read, &[Method::GET, Method::HEAD]),
            "/files" if method == Method::POST => (Self::Write, &[Method::POST]),
            "/files" => (Self::Download, &[Method::GET, Method::HEAD]),
            "/files/compose" => (Self::Write, &[Method::POST]),
            lane::PATH if method == Method::POST => (Self::Lane(Direction::Up), &[Method::POST]),
            lane::PATH => (Self::Lane(Direction::Down), &[Method::GET]),
            _ => {
                let route = call("/process.Process/", PROCESS_CALLS)
                    .or_else(|| call("/filesystem.Filesystem/", FILESYSTEM_CALLS))
                    .ok_or(GuestError::NotForwarded("its path is not a client's"))?;
                (route, &[Method::POST])
            }
        };
        if methods.contains(method) {
            Ok(route)
        } else {
            Err(GuestError::NotForwarded("its method is not its path's"))
        }
    }

    /// The route of a request to the code interpreter, by its exact spelling.
    ///
    /// # Errors
    /// [`GuestError::NotForwarded`] for everything that has none.
    pub fn of_code(method: &Method, uri: &Uri) -> Result<Self, GuestError> {
        if uri.scheme().is_some() || uri.authority().is_some() {
            return Err(GuestError::NotForwarded("its target names a host"));
        }
        let context = |path: &str| {
            let (id, rest) = path.split_once('/').unwrap_or((path, ""));
            let is_id = (1..=CONTEXT_ID_BYTES_MAX).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            is_id
                && if method == Method::POST {
                    path.len() > id.len() && rest == "restart"
                } else {
                    path == id && method == Method::DELETE
                }
        };
        let route = match (method, uri.path()) {
            (&Method::GET | &Method::HEAD, "/health") => Some(Self::Read),
            (&Method::POST, "/execute") => Some(Self::Code(CodeCall::Execute)),
            (&Method::GET | &Method::HEAD, "/contexts") => Some(Self::Code(CodeCall::List)),
            (&Method::POST, "/contexts") => Some(Self::Code(CodeCall::Change)),
            (_, path) => path
                .strip_prefix("/contexts/")
                .filter(|path| context(path))
                .map(|_| Self::Code(CodeCall::Change)),
        };
        route.ok_or(GuestError::NotForwarded("its path is not a client's"))
    }

    /// Whether the guest may see it twice.
    pub(crate) fn repeatable(self) -> bool {
        matches!(
            self,
            Self::Read | Self::Download | Self::Unary(Call::Looks) | Self::Code(CodeCall::List)
        )
    }

    /// Whether its answer is a stream of frames.
    #[must_use]
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Whether it may take long enough for a connection of its own.
    pub(crate) fn is_long(self) -> bool {
        matches!(
            self,
            Self::Stream(_) | Self::Write | Self::Code(CodeCall::Execute | CodeCall::Change)
        )
    }

    /// Whether the answer may take as long as a command lives.
    pub(crate) fn waits_for_a_command(self) -> bool {
        matches!(self, Self::Unary(Call::Waits) | Self::Stream(Call::Waits))
    }

    /// Whether it is a call of a service.
    #[must_use]
    pub fn is_call(self) -> bool {
        matches!(self, Self::Unary(_) | Self::Stream(_))
    }
}

/// Headers of a client's request that mean something to the guest.
///
/// # Errors
/// [`GuestError::NotForwarded`] when there are too many.
pub(crate) fn request_headers(given: &HeaderMap, route: Route) -> Result<HeaderMap, GuestError> {
    let mut passed = HeaderMap::new();
    for (name, value) in given {
        let passes = if name == header::ACCEPT_ENCODING {
            // Frames of a stream are counted, and only plain ones can be.
            !route.is_call()
        } else {
            REQUEST_HEADERS.contains(name) || name.as_str().starts_with(METADATA_PREFIX)
        };
        if !passes {
            continue;
        }
        if passed.len() >= REQUEST_HEADERS_MAX {
            return Err(GuestError::NotForwarded("it has too many headers"));
        }
        passed.append(name, value.clone());
    }
    Ok(passed)
}

/// Headers of a guest's answer that a client may see, and some of ours: what a
/// guest sends is shown as what it says it is, runs no scripts, and is kept by
/// nobody on the way. A cache that believed a guest would give one client's
/// answer to another.
pub(crate) fn answer_headers(given: &HeaderMap, route: Route) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for name in &ANSWER_HEADERS {
        // Each of them once: the second one is for somebody who reads differently.
        if let Some(value) = given.get(name) {
            passed.insert(name, value.clone());
        }
    }
    if given.contains_key(header::TRANSFER_ENCODING) {
        // Of two lengths the other one counts.
        passed.remove(header::CONTENT_LENGTH);
    }
    passed.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    passed.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox"),
    );
    passed.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if route == Route::Download {
        passed.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &Method, target: &str) -> Option<Route> {
        let uri = target.parse().ok()?;
        Route::of(method, &uri).ok()
    }

    #[test]
    fn what_clients_use_passes() {
        for (method, target, expected) in [
            (Method::GET, "/health", Route::Read),
            (Method::GET, "/files?path=/init", Route::Download),
            (Method::HEAD, "/files?path=a", Route::Download),
            (Method::POST, "/files?path=a&username=u", Route::Write),
            (Method::POST, "/files/compose", Route::Write),
            (
                Method::GET,
                "/files/lane?path=a",
                Route::Lane(Direction::Down),
            ),
            (
                Method::POST,
                "/files/lane?path=a",
                Route::Lane(Direction::Up),
            ),
            (Method::GET, "/metrics", Route::Read),
            (Method::GET, "/envs", Route::Read),
            (
                Method::POST,
                "/process.Process/Start",
                Route::Stream(Call::Acts),
            ),
            (
                Method::POST,
                "/filesystem.Filesystem/Stat",
                Route::Unary(Call::Looks),
            ),
        ] {
            assert_eq!(route(&method, target), Some(expected), "{target}");
        }
    }

    #[test]
    fn the_code_interpreter_has_routes_of_its_own() {
        let code = |method: &Method, target: &str| {
            let uri = target.parse().ok()?;
            Route::of_code(method, &uri).ok()
        };
        for (method, target, expected) in [
            (Method::GET, "/health", Route::Read),
            (Method::POST, "/execute", Route::Code(CodeCall::Execute)),
            (
                Method::POST,
                "/execute?source=x",
                Route::Code(CodeCall::Execute),
            ),
            (Method::GET, "/contexts", Route::Code(CodeCall::List)),
            (Method::POST, "/contexts", Route::Code(CodeCall::Change)),
            (
                Method::DELETE,
                "/contexts/a-1",
                Route::Code(CodeCall::Change),
            ),
            (
                Method::POST,
                "/contexts/a-1/restart",
                Route::Code(CodeCall::Change),
            ),
        ] {
            assert_eq!(code(&method, target), Some(expected), "{target}");
            let uri = target.parse().unwrap();
            let is_shared = expected == Route::Read;
            assert_eq!(Route::of(&method, &uri).is_ok(), is_shared, "{target}");
        }
        let long = format!("/contexts/{}", "a".repeat(65));
        for target in [
            "/init",
            "/envs",
            "/files?path=a",
            "/metrics",
            "/process.Process/List",
            "/execute/",
            "/Execute",
            "//execute",
            "/contexts/",
            "/contexts/a/",
            "/contexts/a/restart/",
            "/contexts/a/b",
            "/contexts/../init",
            "/contexts/..%2finit",
            "/contexts/%61",
            "/contexts//restart",
            "/contexts/a//restart",
            &long,
            "http://guest/execute",
            "*",
        ] {
            for method in [Method::GET, Method::POST, Method::DELETE, Method::PUT] {
                assert_eq!(code(&method, target), None, "{method} {target}");
            }
        }
        for (method, target) in [
            (Method::GET, "/execute"),
            (Method::PUT, "/contexts"),
            (Method::DELETE, "/contexts"),
            (Method::GET, "/contexts/a"),
            (Method::DELETE, "/contexts/a/restart"),
            (Method::POST, "/contexts/a"),
            (Method::POST, "/health"),
        ] {
            assert_eq!(code(&method, target), None, "{method} {target}");
        }
    }

    #[test]
    fn nothing_else_passes_however_it_is_spelled() {
        for target in [
            "/",
            "/init",
            "/init/",
            "//init",
            "/./init",
            "/%69nit",
            "/%2finit",
            "/INIT",
            "/init?x=/health",
            "/init;/health",
            "/files/../init",
            "/files/%2e%2e/init",
            "/files/..%2finit",
            "/files/",
            "//files",
            "/Files",
            "/files/compose/",
            "/files/lane/",
            "/files//lane",
            "/files/%6cane",
            "/files/lane/../init",
            "/health/../init",
            "/process.Process/../init",
            "/process.Process/%2e%2e/init",
            "/process.Process/",
            "/process.Process",
            "/process.Process/Start/",
            "/process.Process/start",
            "/process.Process/Freeze",
            "/process.Process//Start",
            "/filesystem.Filesystem/Start",
            "/freeze",
            "*",
            "http://guest/health",
            "http://guest/init",
            "guest:80",
        ] {
            for method in [Method::GET, Method::POST, Method::CONNECT, Method::OPTIONS] {
                assert_eq!(route(&method, target), None, "{target}");
            }
        }
        for (method, target) in [
            (Method::POST, "/health"),
            (Method::PUT, "/files"),
            (Method::DELETE, "/files"),
            (Method::GET, "/files/compose"),
            (Method::HEAD, "/files/lane"),
            (Method::PUT, "/files/lane"),
            (Method::GET, "/process.Process/Start"),
            (Method::CONNECT, "/process.Process/Start"),
        ] {
            assert_eq!(route(&method, target), None, "{target}");
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn only_what_means_something_passes_in() {
        let kept = [
            ("content-type", "application/json"),
            ("connect-timeout-ms", "1000"),
            ("keepalive-ping-interval", "10"),
            ("range", "bytes=0-1"),
            ("x-metadata-a", "b"),
        ];
        let dropped = [
            ("authorization", "Basic dXNlcjo="),
            ("x-access-token", "the client's"),
            ("host", "49983-sandbox.example"),
            ("e2b-sandbox-id", "i1"),
            ("e2b-sandbox-port", "49983"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-api-key", "key"),
            ("cookie", "a=b"),
            ("connection", "keep-alive, x-metadata-a"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("connect-accept-encoding", "gzip"),
            ("accept-encoding", "gzip"),
            (atoll_protocol::SIGNAL_SCOPE_HEADER, "tree"),
        ];
        let given = headers(&[&kept[..], &dropped].concat());
        assert_eq!(
            request_headers(&given, Route::Unary(Call::Acts)).unwrap(),
            headers(&kept)
        );
        let encodings = headers(&[("accept-encoding", "gzip")]);
        assert_eq!(
            request_headers(&encodings, Route::Download).unwrap(),
            encodings
        );
    }

    #[test]
    fn many_headers_do_not_pass() {
        let mut given = HeaderMap::new();
        for _ in 0..65 {
            given.append("x-metadata-a", HeaderValue::from_static("b"));
        }
        assert!(request_headers(&given, Route::Write).is_err());
    }

    #[test]
    fn a_guest_speaks_for_nobody_but_itself() {
        let given = headers(&[
            ("content-type", "text/html"),
            ("content-type", "text/plain"),
            ("content-length", "5"),
            ("set-cookie", "session=stolen"),
            ("strict-transport-security", "max-age=99999999"),
            ("location", "http://elsewhere/"),
            ("access-control-allow-origin", "*"),
            ("content-security-policy", "default-src *"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("alt-svc", "h2=\"elsewhere:443\""),
        ]);
        assert_eq!(
            answer_headers(&given, Route::Read),
            headers(&[
                ("content-type", "text/html"),
                ("x-content-type-options", "nosniff"),
                ("content-security-policy", "sandbox"),
                ("cache-control", "no-store"),
            ])
        );
    }

    #[test]
    fn nobody_keeps_what_a_guest_says() {
        let ours = [
            ("x-content-type-options", "nosniff"),
            ("content-security-policy", "sandbox"),
            ("cache-control", "no-store"),
        ];
        let wishes = [
            ("cache-control", "public, max-age=31536000, immutable"),
            ("vary", "*"),
            ("expires", "Fri, 31 Dec 9999 23:59:59 GMT"),
            ("age", "0"),
            ("pragma", "cache"),
            ("surrogate-control", "max-age=31536000"),
            ("cdn-cache-control", "max-age=31536000"),
        ];
        let gzip = [("content-encoding", "gzip")];
        let given = headers(&[&wishes[..], &gzip].concat());
        for (route, own) in [
            (Route::Download, &[("vary", "accept-encoding")][..]),
            (Route::Read, &[]),
            (Route::Write, &[]),
            (Route::Unary(Call::Looks), &[]),
            (Route::Stream(Call::Acts), &[]),
        ] {
            assert_eq!(
                answer_headers(&given, route),
                headers(&[&ours[..], &gzip, own].concat()),
                "{route:?}"
            );
        }
        assert_eq!(
            answer_headers(&headers(&wishes), Route::Download),
            headers(&[&ours[..], &[("vary", "accept-encoding")]].concat())
        );
    }
}
