//! `GET /sandboxes/{id}/metrics` and `GET /sandboxes/metrics`.

use std::collections::BTreeMap;

use atoll_protocol::rest::{LatestMetrics, SandboxMetric};
use atoll_store::db::MetricSample;
use axum::Json;
use axum::extract::State;

use super::Plane;
use super::answer::ApiError;
use super::authentication::Asker;
use super::moment::rfc3339;
use super::place::SandboxName;
use super::query::{Query, invalid};
use super::routes::Answer;

/// Sandboxes that can be asked for at once.
const SANDBOXES_MAX: usize = 100;

pub(super) async fn of_one(
    State(plane): State<Plane>,
    asker: Asker,
    SandboxName(id): SandboxName,
    query: Query,
) -> Answer<Json<Vec<SandboxMetric>>> {
    let start: Option<i64> = query.value("start")?;
    let end: Option<i64> = query.value("end")?;
    let from_ms = start.map_or(i64::MIN, |start| start.saturating_mul(1000));
    // A second lasts until the next one begins.
    let to_ms = end.map_or(i64::MAX, |end| end.saturating_mul(1000).saturating_add(999));
    let samples = plane
        .lifecycle
        .metrics(&asker.caller, &id, from_ms, to_ms)
        .await;
    let samples = samples.map_err(|error| ApiError::of_sandbox(&id, error))?;
    if from_ms > to_ms {
        return Err(ApiError::bad_request("'start' lies after 'end'"));
    }
    Ok(Json(samples.iter().map(metric).collect()))
}

/// The newest of several; those that are not the caller's are left out.
pub(super) async fn latest(
    State(plane): State<Plane>,
    asker: Asker,
    query: Query,
) -> Answer<Json<LatestMetrics>> {
    let ids = query.text("sandbox_ids").unwrap_or_default();
    let ids: Vec<&str> = ids.split(',').filter(|id| !id.is_empty()).collect();
    if ids.len() > SANDBOXES_MAX {
        let message = format!("at most {SANDBOXES_MAX} sandboxes can be asked for at once");
        return Err(ApiError::bad_request(message));
    }
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        if id.len() > 64 {
            return Err(invalid("sandbox_ids", id));
        }
        let sample = plane.lifecycle.latest_metric(&asker.caller, id).await;
        if let Some(sample) = sample.map_err(|error| ApiError::of_sandbox(id, error))? {
            sandboxes.insert(id.to_owned(), metric(&sample));
        }
    }
    Ok(Json(LatestMetrics { sandboxes }))
}

/// A sample as clients read it: of all its CPUs together.
fn metric(sample: &MetricSample) -> SandboxMetric {
    let cpus = sample.cpu_count.max(1);
    // Thousandths, of which a float holds more than any host can use.
    let thousandths = i32::try_from(sample.cpu_used_millipercent / cpus).unwrap_or(i32::MAX);
    SandboxMetric {
        timestamp: rfc3339(sample.at_ms),
        timestamp_unix: sample.at_ms.div_euclid(1000),
        cpu_count: sample.cpu_count,
        cpu_used_pct: f64::from(thousandths) / 1000.0,
        mem_used: sample.memory_used_bytes,
        mem_total: sample.memory_total_bytes,
        mem_cache: sample.memory_cache_bytes,
        disk_used: sample.disk_used_bytes,
        disk_total: sample.disk_total_bytes,
    }
}
