//! Executions as server-sent events: `started`, `stdout`, `stderr`, `result`,
//! `error`, `dropped`, `end`. Events have numbers as ids; who comes back with
//! `Last-Event-ID` gets what follows.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_control::executions::{ExecutionState, Followed, Follower, LiveExecution};
use atoll_control::identity::Caller;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::super::Plane;
use super::super::event_stream::stopped;
use super::executions::may_see;
use super::identity::{Requester, lifeline};
use super::problem::Problem;
use super::wire::RecoveredBody;
use super::wire_execution::ExecutionBody;

/// Time between two signs of life.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How often it is looked whether the agent of a reader may still see it.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Somebody who reads events.
struct Reader {
    follower: Follower,
    plane: Plane,
    caller: Caller,
    live: Arc<LiveExecution>,
    /// Resolves when the key is over, or the server stops.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// When it is looked at the agent's rights again.
    look_at: Instant,
    /// Told before anything else.
    recovered: Option<RecoveredBody>,
    is_over: bool,
}

impl Reader {
    /// The next piece of the stream; none after the last event, or when the
    /// reader has to go, however much there is to read.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        if let Some(recovered) = self.recovered.take() {
            return Some(event("recovered", None, &recovered));
        }
        let alive_at = Instant::now() + KEEPALIVE;
        let followed = loop {
            if Instant::now() >= self.look_at {
                if !may_stay(&self.plane, &self.caller, &self.live).await {
                    return None;
                }
                self.look_at = Instant::now() + LOOK_EVERY;
            }
            tokio::select! {
                biased;
                () = &mut self.over => return None,
                followed = self.follower.next() => break followed,
                () = sleep_until(alive_at) => return Some(": still there\n\n".to_owned()),
                () = sleep_until(self.look_at) => {}
            }
        };
        match followed? {
            Followed::Dropped { first, last } => {
                let what = json!({"first_event_id": first, "last_event_id": last});
                Some(event("dropped", Some(last), &what))
            }
            Followed::Event(stamped) => {
                self.is_over = stamped.event.name() == "end";
                let (name, id) = (stamped.event.name(), Some(stamped.id));
                Some(event(name, id, stamped.event.as_ref()))
            }
        }
    }
}

/// Whether an agent may still see what it reads. What cannot be looked up now
/// is looked up again.
async fn may_stay(plane: &Plane, caller: &Caller, live: &LiveExecution) -> bool {
    match may_see(plane, caller, &live.row()).await {
        Ok(may) => may,
        Err(error) => {
            tracing::warn!("whether a reader may stay is not known: {error}");
            true
        }
    }
}

/// Events of an execution after the one with the number `after`.
pub(super) async fn stream(
    plane: &Plane,
    requester: &Requester,
    live: &Arc<LiveExecution>,
    after: u64,
    recovered: Option<RecoveredBody>,
) -> Result<Response, Problem> {
    let caller = requester.caller.clone();
    let lifeline = lifeline(plane, requester).await?;
    let stopping = plane.readiness.subscribe();
    let over = Box::pin(async move {
        tokio::select! {
            _ = lifeline.broken() => {}
            () = stopped(stopping) => {}
        }
    });
    let reader = Reader {
        follower: live.events().follow(after),
        plane: Arc::clone(plane),
        caller,
        live: Arc::clone(live),
        over,
        look_at: Instant::now() + LOOK_EVERY,
        recovered,
        is_over: false,
    };
    let pieces = futures_util::stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), reader))
    });
    Ok(answer(Body::from_stream(pieces)))
}

/// The only event of an execution whose others are not here any more.
pub(super) fn only_the_end(state: ExecutionState) -> Response {
    let body = ExecutionBody::from(state);
    answer(Body::from(event("end", None, &body)))
}

fn answer(body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// JSON has no line breaks of its own, so one line of data is enough.
fn event(name: &str, id: Option<u64>, data: &impl Serialize) -> String {
    // Texts and numbers always have a form in JSON.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    format!("event: {name}\n{id}data: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        let text = event("stdout", Some(7), &json!({"text": "a\nb\r\n"}));
        assert_eq!(
            text,
            "event: stdout\nid: 7\ndata: {\"text\":\"a\\nb\\r\\n\"}\n\n"
        );
    }
}
