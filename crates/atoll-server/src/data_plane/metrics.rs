//! `/metrics`: what a sandbox uses, as the host measures it. A guest would say
//! what its root wants to be said.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_control::running::Running;
use atoll_engine::{Limits, Stats};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::answer::{self, Failure};
use crate::body::AnswerBody;

pub(super) const PATH: &str = "/metrics";

/// Time over which the use of the processors is measured.
const SAMPLE_TIME: Duration = Duration::from_millis(100);

/// Body of the answer. Bytes where no name says otherwise.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Metrics {
    /// Seconds since 1970.
    ts: u64,
    cpu_count: u64,
    /// Of all processors together, up to 100.
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// The answer for one sandbox.
pub(super) async fn answer(sandbox: &Running) -> Response<AnswerBody> {
    let measured = async {
        let begun = Instant::now();
        let before = sandbox.live.stats().await?;
        tokio::time::sleep(SAMPLE_TIME).await;
        let after = sandbox.live.stats().await?;
        Ok::<_, atoll_engine::SandboxError>((before, after, begun.elapsed()))
    };
    match measured.await {
        Ok((before, after, passed)) => {
            let metrics = Metrics::new(&before, &after, passed, &sandbox.limits);
            answer::json(StatusCode::OK, &metrics)
        }
        Err(_) => Failure::SandboxNotFound.answer(sandbox.id.as_str(), &http::HeaderMap::new()),
    }
}

impl Metrics {
    fn new(before: &Stats, after: &Stats, passed: Duration, limits: &Limits) -> Self {
        let mem_total = limits.memory_mib << 20;
        let mem_used = after.memory_bytes.saturating_sub(after.memory_cache_bytes);
        Self {
            ts: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |passed| passed.as_secs()),
            cpu_count: limits.cpu_millis.div_ceil(1000),
            cpu_used_pct: used_percent(before, after, passed, limits.cpu_millis),
            mem_total,
            mem_used,
            mem_cache: after.memory_cache_bytes,
            mem_total_mib: limits.memory_mib,
            mem_used_mib: mem_used >> 20,
            disk_used: after.disk_total_bytes.saturating_sub(after.disk_free_bytes),
            disk_total: after.disk_total_bytes,
        }
    }
}

/// Of what the limit allows, to a hundredth.
fn used_percent(before: &Stats, after: &Stats, passed: Duration, cpu_millis: u64) -> f64 {
    let used = u128::from(after.cpu_usec.saturating_sub(before.cpu_usec));
    let possible = passed.as_micros() * u128::from(cpu_millis) / 1000;
    let hundredths = (used * 10_000)
        .checked_div(possible)
        .unwrap_or(0)
        .min(10_000);
    f64::from(u32::try_from(hundredths).unwrap_or(0)) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_of_what_is_allowed() {
        let at = |cpu_usec| Stats {
            cpu_usec,
            ..Stats::default()
        };
        let percent = |used: u64, millis| {
            used_percent(&at(5), &at(5 + used), Duration::from_millis(100), millis)
        };
        let expected = [0.0, 25.0, 50.0, 100.0, 0.0];
        let got = [
            percent(0, 2000),
            percent(50_000, 2000),
            percent(50_000, 1000),
            percent(900_000, 1000),
            percent(1, 0),
        ];
        assert!(
            got.iter()
                .zip(expected)
                .all(|(got, expected)| (got - expected).abs() < 0.001),
            "{got:?}"
        );
    }
}
