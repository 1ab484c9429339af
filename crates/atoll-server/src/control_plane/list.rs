//! `GET /v2/sandboxes` and `GET /sandboxes`.

use std::collections::BTreeMap;

use atoll_control::lifecycle::TemplateReference;
use atoll_protocol::rest::ListedSandbox;
use atoll_store::db::{Cursor, Metadata, Order, SandboxQuery, SandboxState};
use axum::Json;
use axum::extract::State;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::moment;
use super::query::{Query, invalid};
use super::routes::Answer;
use super::wire::listed;

/// Entries of a page, at most and when nothing is said.
const LIMIT_MAX: usize = 100;
/// Where the next page begins.
pub(super) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

pub(super) async fn second_generation(
    State(plane): State<Plane>,
    asker: Asker,
    query: Query,
) -> Answer<(HeaderMap, Json<Vec<ListedSandbox>>)> {
    let mut asked = SandboxQuery::new(&states(query.text("state"))?, limit(&query)?);
    asked.metadata = metadata(query.text("metadata"))?;
    asked.order = match query.text("order") {
        None | Some("desc") => Order::Descending,
        Some("asc") => Order::Ascending,
        Some(other) => return Err(invalid("order", other)),
    };
    asked.started_from_ms = match query.text("startedAfter") {
        None => None,
        Some(text) => Some(moment::parse(text).ok_or_else(|| invalid("startedAfter", text))?),
    };
    asked.after = match query.text("nextToken") {
        None => None,
        Some(text) => {
            let cursor = Cursor::parse(text, asked.order);
            Some(cursor.map_err(|_| invalid("nextToken", text))?)
        }
    };
    if let Some(text) = query.text("template") {
        asked.template = Some(template(text)?);
    }
    let (page, next) = plane
        .lifecycle
        .list(&asker.caller, asked)
        .await
        .map_err(|error| ApiError::of_sandbox("", error))?;
    let mut headers = HeaderMap::new();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next.to_string()).ok()) {
        headers.insert(NEXT_TOKEN, next);
    }
    Ok((headers, Json(page.into_iter().map(listed).collect())))
}

/// All that run, at once.
pub(super) async fn first_generation(
    State(plane): State<Plane>,
    asker: Asker,
    query: Query,
) -> Answer<Json<Vec<ListedSandbox>>> {
    let limit = plane.lifecycle.settings().sandboxes_max;
    let mut asked = SandboxQuery::new(&[SandboxState::Running], limit);
    asked.metadata = metadata(query.text("metadata"))?;
    let (page, _) = plane
        .lifecycle
        .list(&asker.caller, asked)
        .await
        .map_err(|error| ApiError::of_sandbox("", error))?;
    Ok(Json(page.into_iter().map(listed).collect()))
}

pub(super) fn limit(query: &Query) -> Result<usize, ApiError> {
    let limit = query.value("limit")?.unwrap_or(LIMIT_MAX);
    if (1..=LIMIT_MAX).contains(&limit) {
        Ok(limit)
    } else {
        Err(invalid("limit", &limit.to_string()))
    }
}

fn states(text: Option<&str>) -> Result<Vec<SandboxState>, ApiError> {
    // What is on its way counts as what it is shown as: running is who can be reached.
    let running: &[SandboxState] = &[SandboxState::Running];
    let paused: &[SandboxState] = &[
        SandboxState::Paused,
        SandboxState::Pausing,
        SandboxState::Resuming,
    ];
    let Some(text) = text else {
        return Ok([running, paused].concat());
    };
    let mut states = Vec::new();
    for state in text.split(',') {
        states.extend(match state {
            "running" => running,
            "paused" => paused,
            other => return Err(invalid("state", other)),
        });
    }
    Ok(states)
}

/// The name or id of a template, without a tag.
fn template(text: &str) -> Result<String, ApiError> {
    let reference = text.parse::<TemplateReference>();
    match reference {
        Ok(reference) if reference.tag.is_none() => Ok(reference.name),
        Ok(_) | Err(_) => Err(invalid("template", text)),
    }
}

/// Pairs that clients encode three times: once was undone with the query.
fn metadata(text: Option<&str>) -> Result<Metadata, ApiError> {
    let Some(text) = text else {
        return Ok(Metadata::default());
    };
    let mut pairs = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let decoded = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.map(std::borrow::Cow::into_owned)
        };
        match (decoded(&name), decoded(&value)) {
            (Ok(name), Ok(value)) => pairs.insert(name, value),
            _ => return Err(invalid("metadata", text)),
        };
    }
    Ok(Metadata(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_three_times() {
        // As it is when `metadata=a%252520b%3Dc%252526d` was decoded with its query.
        let pairs = metadata(Some("a%2520b=c%2526d&x=y")).unwrap();
        let expected = [("a b", "c&d"), ("x", "y")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs, Metadata(expected.into()));
        assert_eq!(metadata(None).unwrap(), Metadata::default());
        assert!(metadata(Some("a=%25ff")).is_err());
    }

    #[test]
    fn states_are_those_that_clients_know() {
        use SandboxState::{Paused, Pausing, Resuming, Running};
        let all = [Running, Paused, Pausing, Resuming];
        assert_eq!(states(None).unwrap(), all);
        assert_eq!(states(Some("paused")).unwrap(), all[1..]);
        assert_eq!(states(Some("running,paused")).unwrap(), all);
        assert!(states(Some("killing")).is_err());
    }

    #[test]
    fn templates_are_filtered_without_a_tag() {
        assert_eq!(template("Base").unwrap(), "base");
        assert!(template("base:default").is_err());
        assert!(template("a b").is_err());
    }
}
