//! What a sandbox uses, measured by the host every few seconds. Samples of all
//! sandboxes are written together: hundreds of idle ones must not take the disk
//! from whoever creates another.

use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Limits, SandboxId, Stats};
use atoll_store::db::{Database, Fence, METRIC_INTERVAL_MS, MetricSample};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::meter::Between;
use crate::identity::now_ms;
use crate::running::Running;

/// How long samples wait for others.
const GATHERED: Duration = Duration::from_millis(500);
/// Samples in one commit, and as many that wait for it.
const BATCH_MAX: usize = 1024;

/// Where samples are handed to be written.
pub(super) struct Samples(mpsc::Sender<(SandboxId, MetricSample)>);

impl Samples {
    pub(super) fn start(database: Database, fence: Fence) -> Self {
        let (sender, samples) = mpsc::channel(BATCH_MAX);
        tokio::spawn(write(database, fence, samples));
        Self(sender)
    }
}

async fn write(
    database: Database,
    fence: Fence,
    mut samples: mpsc::Receiver<(SandboxId, MetricSample)>,
) {
    let mut batch = Vec::new();
    while samples.recv_many(&mut batch, BATCH_MAX).await > 0 {
        tokio::time::sleep(GATHERED).await;
        while batch.len() < BATCH_MAX
            && let Ok(sample) = samples.try_recv()
        {
            batch.push(sample);
        }
        let rows: Vec<_> = batch
            .iter()
            .map(|(sandbox, sample)| (sandbox.as_str(), sample))
            .collect();
        if let Err(error) = database.record_samples(&fence, &rows).await {
            tracing::warn!("{} samples of sandboxes are lost: {error}", rows.len());
        }
        batch.clear();
    }
}

/// Of so many looks one is metered, after the first two. Counters lose nothing by it, and each
/// takes a commit of its own.
const METERED_EVERY: u64 = 4;

/// Measures one sandbox until dropped.
pub(super) struct Sampler(JoinHandle<()>);

impl Drop for Sampler {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sampler {
    /// Begins; `between` is what it did since it was measured last, if it ever was.
    pub(super) fn start(shared: &Arc<Shared>, running: &Arc<Running>, between: Between) -> Self {
        let (shared, running) = (Arc::clone(shared), Arc::clone(running));
        Self(tokio::spawn(async move {
            sample(&shared, &running, between).await;
        }))
    }
}

async fn sample(shared: &Shared, running: &Running, since_last: Between) {
    let interval = Duration::from_millis(u64::try_from(METRIC_INTERVAL_MS).unwrap_or(5000));
    let mut before: Option<(Instant, u64)> = None;
    let mut is_metered = false;
    for look in 0_u64.. {
        // Between two looks, so that a slow one does not pile up others.
        if before.is_some() {
            tokio::time::sleep(interval).await;
        }
        let Ok(stats) = running.live.stats().await else {
            // Its task learns of the end by itself; one that cannot be measured now may be later.
            before.get_or_insert((Instant::now(), 0));
            continue;
        };
        let now = Instant::now();
        let used = match before {
            Some((then, cpu_usec)) if cpu_usec > 0 => millipercent(
                stats.cpu_usec.saturating_sub(cpu_usec),
                now.saturating_duration_since(then),
            ),
            _ => 0,
        };
        let is_first = before.is_none();
        if look <= 1 || look.is_multiple_of(METERED_EVERY) {
            let between = if is_metered { Between::Ran } else { since_last };
            match shared.meter(running, &stats, between).await {
                Ok(()) => is_metered = true,
                Err(error) => tracing::warn!("the use of {} is metered later: {error}", running.id),
            }
        }
        before = Some((now, stats.cpu_usec));
        if is_first {
            continue; // one look says nothing of a rate
        }
        let sample = of(&stats, &running.limits, used);
        // The task that takes it ends only with the process.
        let _ = shared.samples.0.send((running.id.clone(), sample)).await;
    }
}

/// Use of one CPU, in thousandths of a percent.
fn millipercent(cpu_usec: u64, time: Duration) -> i64 {
    let time_usec = time.as_micros().max(1);
    i64::try_from(u128::from(cpu_usec) * 100_000 / time_usec).unwrap_or(i64::MAX)
}

fn of(stats: &Stats, limits: &Limits, cpu_used_millipercent: i64) -> MetricSample {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    MetricSample {
        at_ms: now_ms(),
        cpu_count: signed(limits.cpu_millis.div_ceil(1000)),
        cpu_used_millipercent,
        memory_used_bytes: signed(stats.memory_bytes.saturating_sub(stats.memory_cache_bytes)),
        memory_total_bytes: signed(limits.memory_bytes()),
        memory_cache_bytes: signed(stats.memory_cache_bytes),
        disk_used_bytes: signed(stats.disk_total_bytes.saturating_sub(stats.disk_free_bytes)),
        disk_total_bytes: signed(stats.disk_total_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_cpu_is_a_hundred_percent_of_one() {
        let second = Duration::from_secs(1);
        assert_eq!(millipercent(1_000_000, second), 100_000);
        assert_eq!(millipercent(3_000_000, 2 * second), 150_000);
        assert_eq!(millipercent(0, Duration::ZERO), 0);
    }

    #[test]
    fn what_holds_files_is_not_in_use() {
        let stats = Stats {
            memory_bytes: 100,
            memory_cache_bytes: 60,
            disk_total_bytes: 50,
            disk_free_bytes: 20,
            ..Stats::default()
        };
        let limits = Limits {
            cpu_millis: 1500,
            ..Limits::default()
        };
        let sample = of(&stats, &limits, 7);
        let expected = MetricSample {
            at_ms: sample.at_ms,
            cpu_count: 2,
            cpu_used_millipercent: 7,
            memory_used_bytes: 40,
            memory_total_bytes: 1024 * 1024 * 1024,
            memory_cache_bytes: 60,
            disk_used_bytes: 30,
            disk_total_bytes: 50,
        };
        assert_eq!(sample, expected);
    }
}
