//! `GET /sandboxes/{id}/logs`, in both forms.

use std::collections::BTreeMap;

use atoll_protocol::rest::{LogEntries, LogLine, SandboxLogEntry, SandboxLogs};
use atoll_store::db::{Direction, LogEntry, LogLevel, LogQuery};
use axum::Json;
use axum::extract::State;
use serde_json::Value;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::moment::rfc3339;
use super::place::SandboxName;
use super::query::{Query, invalid};
use super::routes::Answer;

/// Entries of an answer, at most and when nothing is said.
const LIMIT: usize = 1000;
/// Longest text that is searched for.
const SEARCH_LEN_MAX: usize = 256;

pub(super) async fn first_generation(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    query: Query,
) -> Answer<Json<SandboxLogs>> {
    let asked = LogQuery {
        from_ms: query.value("start")?,
        limit: limit(&query)?,
        ..LogQuery::default()
    };
    let entries = read(&plane, &asker, &id, &asked).await?;
    Ok(Json(SandboxLogs {
        logs: entries.iter().map(line).collect(),
        log_entries: entries.into_iter().map(entry).collect(),
    }))
}

pub(super) async fn second_generation(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    query: Query,
) -> Answer<Json<LogEntries>> {
    let search = query.text("search").map(str::to_owned);
    if let Some(text) = search.as_ref().filter(|text| text.len() > SEARCH_LEN_MAX) {
        return Err(invalid("search", text));
    }
    let asked = LogQuery {
        from_ms: query.value("cursor")?,
        direction: match query.text("direction") {
            None | Some("forward") => Direction::Forward,
            Some("backward") => Direction::Backward,
            Some(other) => return Err(invalid("direction", other)),
        },
        level: match query.text("level") {
            None => None,
            Some(text) => {
                Some(LogLevel::try_from(text.to_owned()).map_err(|_| invalid("level", text))?)
            }
        },
        search,
        limit: limit(&query)?,
    };
    let entries = read(&plane, &asker, &id, &asked).await?;
    Ok(Json(LogEntries {
        logs: entries.into_iter().map(entry).collect(),
    }))
}

fn limit(query: &Query) -> Result<usize, ApiError> {
    let limit: usize = query.value("limit")?.unwrap_or(LIMIT);
    Ok(limit.min(LIMIT))
}

async fn read(plane: &Plane, asker: &Asker, id: &str, query: &LogQuery) -> Answer<Vec<LogEntry>> {
    let entries = plane.lifecycle.logs(&asker.caller, id, query).await;
    entries.map_err(|error| ApiError::of_sandbox(id, error))
}

fn fields(entry: &LogEntry) -> BTreeMap<String, String> {
    let parsed: BTreeMap<String, Value> = serde_json::from_str(&entry.fields).unwrap_or_default();
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    parsed
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect()
}

fn line(entry: &LogEntry) -> LogLine {
    let mut object = fields(entry);
    object.insert("level".to_owned(), entry.level.as_str().to_owned());
    object.insert("message".to_owned(), entry.message.clone());
    LogLine {
        timestamp: rfc3339(entry.at_ms),
        // A map of texts always has a form in JSON.
        line: serde_json::to_string(&object).unwrap_or_default(),
    }
}

fn entry(entry: LogEntry) -> SandboxLogEntry {
    SandboxLogEntry {
        timestamp: rfc3339(entry.at_ms),
        level: entry.level.as_str().to_owned(),
        fields: fields(&entry),
        message: entry.message,
    }
}
