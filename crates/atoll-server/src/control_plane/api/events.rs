//! Executions as server-sent events: `started`, `stdout`, `stderr`, `result`,
//! `error`, `dropped`, `end`. Events have numbers as ids; who comes back with
//! `Last-Event-ID` gets what follows.

use std::sync::Arc;
use std::time::Duration;

use atoll_control::executions::{ExecutionState, Followed, Follower, LiveExecution};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};
use serde::Serialize;
use serde_json::json;

use super::super::Plane;
use super::wire::RecoveredBody;
use super::wire_execution::ExecutionBody;

/// Time between two signs of life.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Somebody who reads events.
struct Reader {
    follower: Follower,
    plane: Plane,
    key: String,
    /// Told before anything else.
    recovered: Option<RecoveredBody>,
    is_over: bool,
}

impl Reader {
    /// The next piece of the stream; none after the last event, or when the
    /// key is not valid any more.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        if let Some(recovered) = self.recovered.take() {
            return Some(event("recovered", None, &recovered));
        }
        let Ok(followed) = tokio::time::timeout(KEEPALIVE, self.follower.next()).await else {
            return match self.plane.keys.authenticate(&self.key).await {
                Ok(_) => Some(": still there\n\n".to_owned()),
                Err(_) => None,
            };
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

/// Events of an execution after the one with the number `after`.
pub(super) fn stream(
    plane: &Plane,
    key: &str,
    live: &Arc<LiveExecution>,
    after: u64,
    recovered: Option<RecoveredBody>,
) -> Response {
    let reader = Reader {
        follower: live.events().follow(after),
        plane: Arc::clone(plane),
        key: key.to_owned(),
        recovered,
        is_over: false,
    };
    let pieces = futures_util::stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), reader))
    });
    answer(Body::from_stream(pieces))
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
