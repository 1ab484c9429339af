//! `GET /events`: what happened to sandboxes of the caller's tenant, page by
//! page; or, for who accepts `text/event-stream`, as it comes.

use atoll_protocol::rest::{EventPage, SandboxEvent};
use atoll_store::db::{Direction, Event, EventKind, EventQuery};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, header};

use super::answer::ApiError;
use super::authentication::Asker;
use super::moment::rfc3339;
use super::query::{Query, invalid};
use super::routes::Answer;
use super::{Plane, event_stream};

/// Events of a page, when nothing is said and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;
/// Longest name of a sandbox that is looked for.
const NAME_LEN_MAX: usize = 64;
/// Where a client that was cut off goes on.
const LAST_EVENT_ID: &str = "last-event-id";

pub(super) async fn events(
    State(plane): State<Plane>,
    asker: Asker,
    headers: HeaderMap,
    query: Query,
) -> Answer<Response> {
    let asked = parse(&query)?;
    if accepts_stream(&headers) {
        if asked.direction == Direction::Backward {
            return Err(ApiError::bad_request(
                "a stream goes forward: use 'after' and not 'before'",
            ));
        }
        let from = match headers.get(LAST_EVENT_ID) {
            None => asked.from,
            Some(value) => {
                let text = value.to_str().unwrap_or_default();
                let number = text.parse().ok().filter(|number| *number >= 0);
                Some(number.ok_or_else(|| invalid("Last-Event-ID", text))?)
            }
        };
        let asked = EventQuery { from, ..asked };
        return event_stream::open(plane, asker.caller, asked).await;
    }
    let events = plane.lifecycle.events(&asker.caller, &asked).await;
    let events = events.map_err(|error| ApiError::internal(&error))?;
    let last = events.last().map(|event| event.sequence);
    let page = EventPage {
        next: last.or(asked.from).unwrap_or(0),
        events: events.into_iter().map(wire).collect(),
    };
    Ok(Json(page).into_response())
}

fn parse(query: &Query) -> Result<EventQuery, ApiError> {
    let number = |name: &str| -> Result<Option<i64>, ApiError> {
        let number: Option<i64> = query.value(name)?;
        match number {
            Some(negative @ ..0) => Err(invalid(name, &negative.to_string())),
            other => Ok(other),
        }
    };
    let (after, before) = (number("after")?, number("before")?);
    let backward = match query.text("direction") {
        None => before.is_some(),
        Some("forward") => false,
        Some("backward") => true,
        Some(other) => return Err(invalid("direction", other)),
    };
    let from = match (backward, after, before) {
        (false, after, None) => after,
        (true, None, before) => before,
        _ => {
            return Err(ApiError::bad_request(
                "'after' goes forward and 'before' backward: give one of them",
            ));
        }
    };
    let sandbox = query.text("sandbox").map(str::to_owned);
    if let Some(name) = sandbox.as_ref().filter(|name| name.len() > NAME_LEN_MAX) {
        return Err(invalid("sandbox", name));
    }
    let kinds = query.text("kind").unwrap_or_default().split(',');
    let kinds = kinds
        .filter(|kind| !kind.is_empty())
        .map(|kind| EventKind::try_from(kind.to_owned()).map_err(|_| invalid("kind", kind)));
    let limit: usize = query.value("limit")?.unwrap_or(LIMIT);
    Ok(EventQuery {
        from,
        direction: if backward {
            Direction::Backward
        } else {
            Direction::Forward
        },
        sandbox,
        kinds: kinds.collect::<Result<_, _>>()?,
        limit: limit.clamp(1, LIMIT_MAX),
    })
}

fn accepts_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| {
        let mut types = value.split(',').filter_map(|one| one.split(';').next());
        types.any(|one| one.trim().eq_ignore_ascii_case("text/event-stream"))
    })
}

/// An event as clients and webhooks read it.
#[must_use]
pub fn wire(event: Event) -> SandboxEvent {
    SandboxEvent {
        id: event.sequence,
        timestamp: rfc3339(event.at_ms),
        kind: event.kind.as_str().to_owned(),
        sandbox_id: event.sandbox_id,
        node_id: event.node_id,
        // Only we write it, and only objects.
        detail: serde_json::from_str(&event.detail).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<EventQuery, ApiError> {
        parse(&Query::parse(text).unwrap())
    }

    #[test]
    fn a_question_goes_one_way_and_names_kinds_that_there_are() {
        let plain = EventQuery {
            limit: LIMIT,
            ..EventQuery::default()
        };
        assert_eq!(asked("").unwrap(), plain);
        let whole = asked("after=7&kind=created,killed&sandbox=iabc&limit=5000").unwrap();
        let expected = EventQuery {
            from: Some(7),
            direction: Direction::Forward,
            sandbox: Some("iabc".to_owned()),
            kinds: vec![EventKind::Created, EventKind::Killed],
            limit: LIMIT_MAX,
        };
        assert_eq!(whole, expected);
        let back = EventQuery {
            from: Some(9),
            direction: Direction::Backward,
            ..plain.clone()
        };
        assert_eq!(asked("before=9").unwrap(), back);
        assert_eq!(asked("direction=backward&before=9").unwrap(), back);
        for wrong in [
            "after=1&before=9",
            "direction=backward&after=1",
            "direction=forward&before=1",
            "direction=up",
            "after=-1",
            "after=x",
            "after=9223372036854775808",
            "kind=created,exploded",
            "limit=-1",
            "sandbox=0123456789012345678901234567890123456789012345678901234567890123456789",
        ] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stream_is_for_who_asks_for_one() {
        let accepts = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, http::HeaderValue::from_static(value));
            accepts_stream(&headers)
        };
        assert!(accepts("text/event-stream"));
        assert!(accepts("application/json, Text/Event-Stream;q=0.9"));
        assert!(!accepts("*/*"));
        assert!(!accepts("text/event-streams"));
        assert!(!accepts_stream(&HeaderMap::new()));
    }
}
