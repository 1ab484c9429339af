//! `POST /sandboxes/{id}/snapshots`, `GET /snapshots`, `DELETE /templates/{snapshot}` and
//! `POST /sandboxes/{id}/fork`.

use std::time::Duration;

use atoll_control::lifecycle::{OperationError, SnapshotError, SnapshotFilter, SnapshotView};
use atoll_engine::Tier;
use atoll_protocol::rest::{Fork, ForkResult, NewSnapshot, SnapshotInfo};
use axum::Json;
use axum::extract::State;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::Plane;
use super::answer::{ApiError, Retry};
use super::authentication::Asker;
use super::body::Optional;
use super::list::{NEXT_TOKEN, limit};
use super::place::{Name, SandboxName};
use super::query::{Query, invalid};
use super::routes::Answer;
use super::templates::find;

/// How long a fork lives when nothing is said: as long as a sandbox.
const TIMEOUT: i64 = 300;

/// Whether memory is part of a snapshot is the tier's to say; `memory` in the body can only ask
/// for what is so anyway, and E2B's clients send it only when they were told to.
pub(super) async fn create(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<NewSnapshot>,
) -> Answer<(StatusCode, Json<SnapshotInfo>)> {
    let has_memory = plane.lifecycle.tier() == Tier::Gvisor;
    if body.memory.is_some_and(|wanted| wanted != has_memory) {
        // Whoever may not see the sandbox learns nothing else.
        let found = plane.lifecycle.get(&asker.caller, &id).await;
        found.map_err(|error| ApiError::of_sandbox(&id, error))?;
        return Err(ApiError::bad_request(if has_memory {
            "snapshots hold memory and files on this server: leave 'memory' out"
        } else {
            "snapshots hold files and no memory on this server: leave 'memory' out"
        }));
    }
    let name = body.name.as_deref().filter(|name| !name.is_empty());
    let taken = plane.lifecycle.snapshot(&asker.caller, &id, name).await;
    let taken = taken.map_err(|error| ApiError::of_snapshot(&id, error))?;
    Ok((StatusCode::CREATED, Json(info(taken))))
}

pub(super) async fn list(
    State(plane): State<Plane>,
    asker: Asker,
    query: Query,
) -> Answer<(HeaderMap, Json<Vec<SnapshotInfo>>)> {
    let name = query.text("name").map(|text| {
        let name = text.parse();
        name.map_err(|_| invalid("name", text))
    });
    let filter = SnapshotFilter {
        sandbox: query.text("sandboxID").map(str::to_owned),
        name: name.transpose()?,
    };
    let limit = limit(&query)?;
    let snapshots = plane.lifecycle.snapshots(&asker.caller, &filter).await;
    let snapshots = snapshots.map_err(|error| ApiError::of_snapshot("", error))?;
    // Newest first: the page begins behind the moment and the id that the last one ended with.
    let after = match query.text("nextToken") {
        None => None,
        Some(text) => Some(place(text).ok_or_else(|| invalid("nextToken", text))?),
    };
    let is_behind = |one: &SnapshotView| {
        let key = (one.created_at_ms, one.id.as_str());
        after
            .as_ref()
            .is_none_or(|(at, id)| key < (*at, id.as_str()))
    };
    let mut rest: Vec<SnapshotView> = snapshots.into_iter().filter(is_behind).collect();
    rest.sort_by(|left, right| {
        let key = |one: &SnapshotView| (one.created_at_ms, one.id.clone());
        key(right).cmp(&key(left))
    });
    let mut headers = HeaderMap::new();
    if rest.len() > limit {
        rest.truncate(limit);
        let next = rest
            .last()
            .map(|last| format!("{}_{}", last.created_at_ms, last.id));
        if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
            headers.insert(NEXT_TOKEN, next);
        }
    }
    Ok((headers, Json(rest.into_iter().map(info).collect())))
}

fn place(text: &str) -> Option<(u64, String)> {
    let (moment, id) = text.split_once('_')?;
    Some((moment.parse().ok()?, id.to_owned()))
}

/// Snapshots are deleted as templates are. What everybody uses belongs to who runs the server.
pub(super) async fn delete(
    State(plane): State<Plane>,
    asker: Asker,
    Name(name): Name,
) -> Answer<StatusCode> {
    match plane.lifecycle.delete_snapshot(&asker.caller, &name).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(SnapshotError::Missing(_)) => {
            find(&plane, &name)?;
            Err(ApiError::bad_request(
                "templates cannot be changed over the network in this version of Atoll: use `atoll template` on its host",
            ))
        }
        Err(error) => Err(ApiError::of_snapshot("", error)),
    }
}

pub(super) async fn fork(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    Optional(body): Optional<Fork>,
) -> Answer<(StatusCode, Json<Vec<ForkResult>>)> {
    let failed = |error| ApiError::of_snapshot(&id, error);
    let count = usize::try_from(body.count.unwrap_or(1)).unwrap_or(0);
    let longest = plane.lifecycle.settings().lifetime_max;
    let default = i64::try_from(longest.as_secs()).map_or(TIMEOUT, |longest| longest.min(TIMEOUT));
    let seconds = u64::try_from(body.timeout.unwrap_or(default)).unwrap_or(0);
    let time = Duration::from_secs(seconds);
    let forks = plane.lifecycle.fork(&asker.caller, &id, count, time).await;
    let forks = forks.map_err(failed)?.into_iter().map(|fork| match fork {
        Ok(created) => ForkResult::Sandbox(plane.sandbox(created)),
        Err(error) => ForkResult::Error(ApiError::from(error).body()),
    });
    Ok((StatusCode::CREATED, Json(forks.collect())))
}

fn info(snapshot: SnapshotView) -> SnapshotInfo {
    SnapshotInfo {
        snapshot_id: snapshot.id,
        names: snapshot.name.into_iter().collect(),
        has_memory: snapshot.has_memory,
    }
}

impl ApiError {
    /// An error of a snapshot of the sandbox `id`.
    fn of_snapshot(id: &str, error: SnapshotError) -> Self {
        let message = error.to_string();
        match error {
            SnapshotError::Sandbox(OperationError::Failed(reason)) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("sandbox '{id}' cannot be written down now, and it runs on: {reason}"),
            )
            .retry(Retry::Yes),
            SnapshotError::Sandbox(error) => Self::of_sandbox(id, error),
            SnapshotError::Missing(_) => Self::new(StatusCode::NOT_FOUND, message),
            SnapshotError::Tier(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry(Retry::No)
            }
            SnapshotError::Name(_)
            | SnapshotError::Namespace(_)
            | SnapshotError::Count
            | SnapshotError::Time(_)
            | SnapshotError::TooDeep
            | SnapshotError::Unfit(_) => Self::bad_request(message),
            SnapshotError::TooMany(_) | SnapshotError::TooManyAtOnce => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, message)
            }
            SnapshotError::TooLong => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
            SnapshotError::Layer(_)
            | SnapshotError::Catalog(_)
            | SnapshotError::Host(_)
            | SnapshotError::Seal(_) => Self::internal(&error),
        }
    }
}
