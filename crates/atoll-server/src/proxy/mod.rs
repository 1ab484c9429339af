//! Ports of sandboxes that are not the guest's: HTTP/1.1 to whatever listens
//! there, which is as little trusted as the client.
//!
//! | file | owns |
//! |---|---|
//! | `request.rs` | which headers of a request pass |
//! | `response.rs` | which headers of an answer pass |
//! | `hop.rs` | headers that belong to one connection |
//! | `upstream.rs` | what one sandbox is given: connections and dials |
//! | `connection.rs` | one connection to a port: dialed, maybe with TLS, used again |
//! | `inner_tls.rs` | TLS to services inside, whose certificates nobody knows |
//! | `passing.rs` | a body on its way back |
//! | `tunnel.rs` | what follows after an upgrade, such as a WebSocket |
//!
//! Both sides are parsed and written anew, so nothing that one side could read
//! in another way than we do gets to it. **Invariant**: every message that
//! passes has one length, written by us.

mod connection;
mod hop;
mod inner_tls;
mod passing;
mod request;
mod response;
mod tunnel;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use atoll_control::identity::{Access, SandboxEnd};
use atoll_control::running::Running;
use atoll_protocol::signature::equal_in_constant_time;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use crate::answer::{self, Failure};
use crate::body::{AnswerBody, Broken, streamed};
use crate::crowd::{Crowd, InCrowd};
use crate::leash::Leashed;
use crate::listener::{Client, ClientBody};
use crate::silence::Talkative;
use connection::{Connection, OpenError, RequestBody, SendError};
use passing::Passing;
use upstream::{Upstream, Upstreams};

pub(crate) use tunnel::{ask as switch_to, wanted as wanted_protocol};

/// How long either side of a request may be silent. Clients of E2B count on 600 s.
const SILENCE_BOUND: Duration = Duration::from_secs(660);

/// Header with the token of visitors.
pub(crate) const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// Requests to ports of sandboxes.
pub(crate) struct Proxy {
    access: Arc<Access>,
    upstreams: Upstreams,
    crowd: Arc<Crowd>,
}

/// Who wants to go where.
pub(crate) struct Visit<'v> {
    pub(crate) sandbox: Arc<Running>,
    pub(crate) port: u16,
    /// The host as the client wrote it.
    pub(crate) authority: Option<HeaderValue>,
    pub(crate) client: &'v Client,
}

impl Proxy {
    pub(crate) fn new(access: Arc<Access>, crowd: Arc<Crowd>) -> Self {
        Self {
            access,
            crowd,
            upstreams: Upstreams::default(),
        }
    }

    /// Passes a request on, and the answer back.
    ///
    /// # Errors
    /// When the client or the sandbox is gone, and the connection has to break.
    pub(crate) async fn pass(
        &self,
        visit: Visit<'_>,
        request: Request<ClientBody>,
    ) -> Result<Response<AnswerBody>, Broken> {
        let id = visit.sandbox.id.as_str();
        let refuse = |failure: Failure, asked: &HeaderMap| Ok(failure.answer(id, asked));
        if let Err(failure) = check_traffic_token(&visit.sandbox, request.headers()) {
            return refuse(failure, request.headers());
        }
        if request.method() == Method::TRACE {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            return Ok(answer::error(status, "the method TRACE does not pass"));
        }
        let upstream = self.upstreams.of(&visit.sandbox);
        let Some(in_use) = self.crowd.enter(id) else {
            let limit = self.crowd.limit();
            return refuse(Failure::TooMany { limit }, request.headers());
        };
        let Some(end) = self.access.end_of(&visit.sandbox.id) else {
            return refuse(Failure::SandboxNotFound, request.headers());
        };
        let asked = answer_preferences(request.headers());
        tokio::select! {
            biased;
            () = end.clone().reached() => Err(Broken("the sandbox has ended")),
            passed = self.exchange(&visit, &upstream, request, in_use, end) => match passed {
                Ok(response) => Ok(response),
                Err(Trouble::Client) => Err(Broken("the request broke off")),
                Err(Trouble::Service(failure)) => {
                    let failure = gone_instead(failure, &visit.sandbox).await;
                    Ok(failure.answer(id, &asked))
                }
            },
        }
    }

    async fn exchange(
        &self,
        visit: &Visit<'_>,
        upstream: &Arc<Upstream>,
        mut request: Request<ClientBody>,
        in_use: InCrowd,
        end: SandboxEnd,
    ) -> Result<Response<AnswerBody>, Trouble> {
        let wanted = tunnel::wanted(request.headers(), request.version());
        let to_client = wanted.is_some().then(|| hyper::upgrade::on(&mut request));
        let wants = match wanted {
            Some(_) => Wants::Connection,
            None => Wants::Answer,
        };
        let method = request.method().clone();
        let request = self.prepared(visit, request, wanted.as_ref())?;
        let (mut response, connection) = send(visit, upstream, request, wants).await?;

        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(wanted), Some(to_client)) = (wanted, to_client) else {
                return Err(service(visit.port, "switched protocols unasked"));
            };
            if !tunnel::is_agreed(&response, &wanted) {
                return Err(service(
                    visit.port,
                    "switched to another protocol than asked",
                ));
            }
            let to_service = hyper::upgrade::on(&mut response);
            tunnel::spawn(tunnel::Tunnel {
                to_client,
                to_service,
                client: visit.client.clone(),
                end,
                in_use,
                connection,
            });
            return Ok(tunnel::agreement(&response, &wanted));
        }
        let (head, body) = response.into_parts();
        let head = response::passed(head, &method, visit.authority.as_ref());
        let body = Passing::new(body, connection, Arc::clone(upstream), visit.port, in_use);
        let body = Leashed::new(Talkative::new(body, SILENCE_BOUND), async move {
            end.reached().await;
            Broken("the sandbox has ended")
        });
        Ok(Response::from_parts(head, streamed(body)))
    }

    /// The request as the service gets it.
    fn prepared(
        &self,
        visit: &Visit<'_>,
        request: Request<ClientBody>,
        wanted: Option<&HeaderValue>,
    ) -> Result<Request<RequestBody>, Trouble> {
        let (mut head, body) = request.into_parts();
        let is_ours = |token: &str| self.access.verify(&visit.sandbox.id, token).is_ok();
        let headers = request::passed(&head, visit, is_ours, &body)
            .map_err(|what| service(visit.port, what))?;
        head.headers = headers;
        if let Some(protocol) = wanted {
            tunnel::ask(&mut head.headers, protocol);
        }
        head.version = Version::HTTP_11;
        head.extensions = http::Extensions::new();
        let body = if body.is_end_stream() {
            connection::no_body()
        } else {
            connection::body(Talkative::new(body, SILENCE_BOUND))
        };
        Ok(Request::from_parts(head, body))
    }
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// An answer, on any connection.
    Answer,
    /// A connection of its own, for another protocol.
    Connection,
}

/// Why there is no answer of the service.
enum Trouble {
    /// The client is the reason.
    Client,
    /// The service is.
    Service(Failure),
}

fn service(port: u16, what: &str) -> Trouble {
    Trouble::Service(Failure::Service {
        port,
        message: format!("The service on port {port} {what}"),
    })
}

/// Sends a request on a connection that waits, or on a new one. A request
/// that a waiting connection may have lost is sent again only if that changes
/// nothing.
async fn send(
    visit: &Visit<'_>,
    upstream: &Arc<Upstream>,
    request: Request<RequestBody>,
    wants: Wants,
) -> Result<(Response<Incoming>, Connection), Trouble> {
    let port = visit.port;
    let waiting = match wants {
        Wants::Answer => upstream.take(port),
        Wants::Connection => None,
    };
    let mut request = request;
    if let Some(mut connection) = waiting {
        let again = repeatable(&request);
        match bounded(connection.send(request), port).await? {
            Ok(response) => return Ok((response, connection)),
            Err(SendError::Unsent(unsent)) => request = *unsent,
            Err(SendError::Lost(error)) => match again {
                Some(again) if !error.is_parse() => request = again,
                Some(_) | None => return Err(lost(&error, port)),
            },
        }
    }
    let name = request.headers().get(http::header::HOST);
    let opened = Connection::open(upstream, &visit.sandbox, port, name).await;
    let mut connection = opened.map_err(|error| match error {
        OpenError::Closed => Trouble::Service(Failure::PortClosed(port)),
        OpenError::Other(what) => service(port, &what),
    })?;
    match bounded(connection.send(request), port).await? {
        Ok(response) => Ok((response, connection)),
        Err(SendError::Unsent(_)) => Err(service(port, "closed the connection at once")),
        Err(SendError::Lost(error)) => Err(lost(&error, port)),
    }
}

async fn bounded<T>(answer: impl Future<Output = T>, port: u16) -> Result<T, Trouble> {
    timeout(SILENCE_BOUND, answer)
        .await
        .map_err(|_| service(port, "did not answer in time"))
}

fn lost(error: &hyper::Error, port: u16) -> Trouble {
    if error.is_user() || error.is_body_write_aborted() {
        // Only the body of the request is ours, and that is the client's.
        return Trouble::Client;
    }
    service(
        port,
        if error.is_parse_too_large() {
            "answered with headers that are too long"
        } else if error.is_parse() {
            "did not answer with HTTP"
        } else {
            "closed the connection without an answer"
        },
    )
}

/// A second copy of a request that changes nothing and has no body.
fn repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let is_safe = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if !is_safe || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(connection::no_body());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// A sandbox that ended is not found, whatever was wrong on the way to it.
async fn gone_instead(failure: Failure, sandbox: &Running) -> Failure {
    if answer::has_ended(sandbox).await {
        Failure::SandboxNotFound
    } else {
        failure
    }
}

/// What decides in which form a failure is said.
fn answer_preferences(asked: &HeaderMap) -> HeaderMap {
    let names = ["accept", "sec-fetch-mode"];
    let kept = names.iter().filter_map(|name| {
        let value = asked.get(*name)?.clone();
        Some((http::HeaderName::from_static(name), value))
    });
    kept.collect()
}

/// Whether a visitor may come.
pub(crate) fn check_traffic_token(sandbox: &Running, headers: &HeaderMap) -> Result<(), Failure> {
    let Some(expected) = &sandbox.ingress.traffic_token else {
        return Ok(());
    };
    let mut given = headers.get_all(TRAFFIC_TOKEN).iter();
    match (given.next(), given.next()) {
        (Some(token), None) if equal_in_constant_time(token.as_bytes(), expected.as_bytes()) => {
            Ok(())
        }
        (None, _) => Err(Failure::TrafficToken(
            "The sandbox takes no traffic without its token: the header e2b-traffic-access-token is missing",
        )),
        (Some(_), _) => Err(Failure::TrafficToken(
            "The token in the header e2b-traffic-access-token is not the one of this sandbox",
        )),
    }
}
