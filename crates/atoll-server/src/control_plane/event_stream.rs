//! Events as they come, in the form of Server-Sent Events.
//!
//! The stream reads a page of the store when its client has room for it, and
//! holds no more than that page: there is no queue that a slow client could
//! fill. It goes on after the last event that was sent, so none is sent twice
//! and none is left out, across connections too (`Last-Event-ID`).
//!
//! | line | meaning |
//! |---|---|
//! | `id`, `event`, `data` | an event: its number, its kind, all of it |
//! | `event: gap` | events up to this number are not kept any more; some may be missing |
//! | `event: end` | nothing more comes on this connection, and why |
//! | `: alive` | nothing happened |

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_control::identity::{Caller, GrantError, Over};
use atoll_store::db::{Event, EventPage, EventQuery, TenantId};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Plane;
use super::answer::ApiError;
use super::events::wire;
use super::routes::Answer;

/// Streams that one tenant has open at once.
const FOLLOWERS_MAX: usize = 32;
/// Events that are read at once.
const PAGE: usize = 100;
/// How often the store is looked at without news: another process may write too.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest silence on a stream.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// How long a client may have no room for more.
const SLOW_BOUND: Duration = Duration::from_secs(60);

const ALIVE: &str = ": alive\n\n";

/// Who follows events right now.
#[derive(Debug, Clone, Default)]
pub(super) struct Followers(Arc<Mutex<HashMap<TenantId, usize>>>);

impl Followers {
    fn enter(&self, tenant: TenantId) -> Option<Follower> {
        let mut all = self.lock();
        let count = all.entry(tenant).or_default();
        if *count >= FOLLOWERS_MAX {
            return None;
        }
        *count += 1;
        Some(Follower {
            all: self.clone(),
            tenant,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        // Every change is a single step, so a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the followers, until dropped.
#[derive(Debug)]
struct Follower {
    all: Followers,
    tenant: TenantId,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.all.lock().entry(self.tenant) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    KeyRevoked,
    KeyExpired,
    SlowReader,
    ServerStopping,
    Failed,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            Self::KeyRevoked => "key_revoked",
            Self::KeyExpired => "key_expired",
            Self::SlowReader => "slow_reader",
            Self::ServerStopping => "server_stopping",
            Self::Failed => "failed",
        }
    }

    fn text(self) -> String {
        format!("event: end\ndata: {{\"reason\":\"{}\"}}\n\n", self.name())
    }
}

impl From<Over> for End {
    fn from(over: Over) -> Self {
        match over {
            // No sandbox is waited for.
            Over::KeyRevoked | Over::SandboxEnded => Self::KeyRevoked,
            Over::KeyExpired => Self::KeyExpired,
        }
    }
}

/// Opens a stream of what `query` asks for: after the event it names, or from now on.
pub(super) async fn open(plane: Plane, caller: Caller, query: EventQuery) -> Answer<Response> {
    let internal = |error: &dyn std::error::Error| ApiError::internal(error);
    let place = plane.followers.enter(caller.tenant).ok_or_else(|| {
        let message = format!("{FOLLOWERS_MAX} streams of events are open already; close some");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
    })?;
    let (news, lifeline) = match plane.lifecycle.follow_events(&caller).await {
        Ok(followed) => followed,
        Err(GrantError::NotFound) => {
            let message = "the API key is not valid";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
        }
        Err(error) => return Err(internal(&error)),
    };
    let bounds = plane.lifecycle.event_bounds().await;
    let bounds = bounds.map_err(|error| internal(&error))?;
    let gap = query
        .from
        .is_some_and(|from| from < bounds.forgotten)
        .then_some(bounds.forgotten);
    let stopping = plane.readiness.subscribe();
    let over = Box::pin(async move {
        tokio::select! {
            over = lifeline.broken() => over.into(),
            () = stopped(stopping) => End::ServerStopping,
        }
    });
    let following = Following {
        query: EventQuery {
            // A number that is not given out yet is one of another server: it starts over.
            from: Some(query.from.map_or(bounds.newest, |from| {
                // What is between is said to be missing below.
                from.max(bounds.forgotten).min(bounds.newest)
            })),
            limit: PAGE,
            ..query
        },
        source: Source { plane, caller },
        news,
        over,
        greeting: Some(gap.map_or_else(|| ALIVE.to_owned(), gap_text)),
        given: None,
        is_over: false,
        _place: place,
    };
    let body = stream::unfold(following, |mut following| async move {
        let chunk = following.next().await?;
        Some((Ok::<Bytes, Infallible>(Bytes::from(chunk)), following))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Waits until the server wants no more requests.
pub(super) async fn stopped(mut readiness: watch::Receiver<bool>) {
    // An error says that the server is gone.
    let _ = readiness.wait_for(|is_ready| !is_ready).await;
}

/// Where pages come from.
struct Source {
    plane: Plane,
    caller: Caller,
}

impl Source {
    async fn page(&self, query: &EventQuery) -> Result<EventPage, End> {
        let read = self.plane.lifecycle.events_after(&self.caller, query).await;
        read.map_err(|error| {
            tracing::error!("a stream of events ends: {error}");
            End::Failed
        })
    }
}

/// One client on its way through the events.
struct Following {
    source: Source,
    query: EventQuery,
    news: watch::Receiver<()>,
    /// Resolves when the client has to go.
    over: Pin<Box<dyn Future<Output = End> + Send>>,
    /// What is said first, so that the client knows that it is connected.
    greeting: Option<String>,
    /// When the last chunk was given.
    given: Option<Instant>,
    is_over: bool,
    _place: Follower,
}

impl Following {
    /// What is sent next; nothing when all is said.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        let is_slow = self.given.is_some_and(|given| given.elapsed() > SLOW_BOUND);
        let chunk = if is_slow {
            Err(End::SlowReader)
        } else if let Some(greeting) = self.greeting.take() {
            Ok(greeting)
        } else {
            self.news_or_silence().await
        };
        self.given = Some(Instant::now());
        Some(chunk.unwrap_or_else(|end| {
            self.is_over = true;
            end.text()
        }))
    }

    async fn news_or_silence(&mut self) -> Result<String, End> {
        let alive_at = Instant::now() + ALIVE_EVERY;
        loop {
            // Before the look: what is written after it rings again.
            self.news.borrow_and_update();
            let page = tokio::select! {
                biased;
                end = &mut self.over => return Err(end),
                page = self.source.page(&self.query) => page?,
            };
            self.query.from = Some(page.next);
            if let Some(chunk) = chunk(page) {
                return Ok(chunk);
            }
            let look_at = Instant::now() + LOOK_EVERY;
            tokio::select! {
                biased;
                end = &mut self.over => return Err(end),
                changed = self.news.changed() => {
                    if changed.is_err() {
                        return Err(End::ServerStopping);
                    }
                }
                () = sleep_until(alive_at) => return Ok(ALIVE.to_owned()),
                () = sleep_until(look_at) => {}
            }
        }
    }
}

/// What is said of a page, if anything.
fn chunk(page: EventPage) -> Option<String> {
    let gap = page.missed.map(gap_text);
    let text: String = gap
        .into_iter()
        .chain(page.events.into_iter().map(text))
        .collect();
    (!text.is_empty()).then_some(text)
}

/// An event as lines. JSON has no line breaks of its own.
fn text(event: Event) -> String {
    let event = wire(event);
    let mut lines = format!("id: {}\nevent: {}\ndata: ", event.id, event.kind);
    // Numbers, texts and maps of them always have a form in JSON.
    let json = serde_json::to_string(&event).unwrap_or_default();
    let _ = write!(lines, "{json}\n\n"); // a text takes everything
    lines
}

fn gap_text(forgotten: i64) -> String {
    format!("event: gap\ndata: {{\"forgotten\":{forgotten}}}\n\n")
}

#[cfg(test)]
mod tests {
    use atoll_store::db::EventKind;

    use super::*;

    fn event() -> Event {
        Event {
            sequence: 7,
            at_ms: 0,
            sandbox_id: Some("iabc".to_owned()),
            kind: EventKind::Crashed,
            detail: r#"{"reason":"a\nb\r\n\nevent: end"}"#.to_owned(),
            node_id: "n".to_owned(),
        }
    }

    #[test]
    fn what_was_forgotten_while_a_client_was_slow_is_said_before_the_rest() {
        let page = |events, missed| EventPage {
            events,
            next: 9,
            missed,
        };
        assert_eq!(chunk(page(Vec::new(), None)), None);
        assert_eq!(chunk(page(Vec::new(), Some(6))), Some(gap_text(6)));
        let both = gap_text(6) + &text(event());
        assert_eq!(chunk(page(vec![event()], Some(6))), Some(both));
    }

    #[test]
    fn an_event_is_three_lines_whatever_is_in_it() {
        let text = text(event());
        let lines: Vec<&str> = text.split('\n').collect();
        assert_eq!(
            lines,
            [
                "id: 7",
                "event: crashed",
                r#"data: {"id":7,"timestamp":"1970-01-01T00:00:00Z","kind":"crashed","sandboxID":"iabc","nodeID":"n","detail":{"reason":"a\nb\r\n\nevent: end"}}"#,
                "",
                ""
            ]
        );
        assert!(!text.contains('\r'));
    }

    #[test]
    fn a_tenant_has_a_bounded_number_of_streams() {
        let followers = Followers::default();
        let (one, other) = (TenantId::random(), TenantId::random());
        let mut places: Vec<Follower> = (0..FOLLOWERS_MAX)
            .map(|_| followers.enter(one).unwrap())
            .collect();
        assert!(followers.enter(one).is_none());
        let _theirs = followers.enter(other).unwrap();
        places.pop();
        assert!(followers.enter(one).is_some());
        drop(places);
        assert_eq!(followers.lock().len(), 1, "nothing is kept of who left");
    }

    #[test]
    fn an_end_says_why() {
        let text = End::from(Over::KeyRevoked).text();
        assert_eq!(text, "event: end\ndata: {\"reason\":\"key_revoked\"}\n\n");
    }
}
