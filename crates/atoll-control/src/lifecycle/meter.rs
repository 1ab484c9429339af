//! What a sandbox has used, counted from two looks of the host at it.
//!
//! Counters (CPU, traffic) say what there was between two looks, however long
//! that took: also while no server ran. What is held (memory, disk) is taken
//! for the mean of both looks. Sums are kept by the minute, in the database.

use std::time::Duration;

use atoll_engine::Stats;
use atoll_store::db::{DatabaseError, METERED_MS, MeterReading, SandboxState, UsageSums};

use super::Shared;
use crate::identity::now_ms;
use crate::running::Running;

/// How often a reading is tried again when another one came between.
const ATTEMPTS: usize = 3;
/// How long the last look at a sandbox may take that is about to end.
const LAST_LOOK_BOUND: Duration = Duration::from_secs(1);

/// What a sandbox did between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    /// It ran.
    Ran,
    /// It was paused: its disk was there.
    WasPaused,
}

impl Between {
    /// Of one that is in `state`.
    pub(super) fn of(state: SandboxState) -> Self {
        match state {
            SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming => {
                Self::WasPaused
            }
            SandboxState::Creating | SandboxState::Running | SandboxState::Killing => Self::Ran,
        }
    }
}

/// Looks at a sandbox that is about to end, if it is still there.
pub(super) async fn last_look(running: &Running) -> Option<Stats> {
    let looking = tokio::time::timeout(LAST_LOOK_BOUND, running.live.stats());
    looking.await.ok()?.ok()
}

impl Shared {
    /// Writes what `running` has used since it was read last.
    pub(super) async fn meter(
        &self,
        running: &Running,
        stats: &Stats,
        between: Between,
    ) -> Result<(), DatabaseError> {
        let foundation = &self.foundation;
        let (database, id) = (&foundation.database, running.id.as_str());
        let now = reading(stats, now_ms());
        for _ in 0..ATTEMPTS {
            let last = database.last_reading(id).await?;
            let used = last.map_or_else(UsageSums::default, |last| used(&last, &now, between));
            let minute_ms = now.at_ms - now.at_ms.rem_euclid(METERED_MS);
            let written = database
                .record_usage(&foundation.fence, id, (last, now), (minute_ms, used))
                .await?;
            if written {
                break;
            }
        }
        Ok(())
    }

    /// The same for one that is about to end, and was looked at a moment ago.
    pub(super) async fn meter_last(
        &self,
        running: &Running,
        stats: Option<Stats>,
        between: Between,
    ) {
        let Some(stats) = stats else {
            return; // it had ended, and the look before was the last
        };
        if let Err(error) = self.meter(running, &stats, between).await {
            tracing::warn!(
                "the last seconds of {} are not metered: {error}",
                running.id
            );
        }
    }
}

fn reading(stats: &Stats, at_ms: i64) -> MeterReading {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let network = stats.network.as_ref();
    MeterReading {
        at_ms,
        cpu_usec: signed(stats.cpu_usec),
        sent_bytes: signed(network.map_or(0, |network| network.sent.bytes)),
        received_bytes: signed(network.map_or(0, |network| network.received.bytes)),
        memory_bytes: signed(stats.memory_bytes.saturating_sub(stats.memory_cache_bytes)),
        disk_bytes: signed(stats.disk_total_bytes.saturating_sub(stats.disk_free_bytes)),
    }
}

/// What there was between two looks.
fn used(last: &MeterReading, now: &MeterReading, between: Between) -> UsageSums {
    // The clock may have been set back.
    let elapsed_ms = now.at_ms.saturating_sub(last.at_ms).max(0);
    // A counter that is smaller than before began anew.
    let since = |last: i64, now: i64| if now < last { now } else { now - last };
    let held = |last: i64, now: i64| {
        let mean_kib = (i128::from(last) + i128::from(now)) / 2 / 1024;
        i64::try_from(mean_kib * i128::from(elapsed_ms) / 1000).unwrap_or(i64::MAX)
    };
    let (running_ms, memory_kib_s) = match between {
        Between::Ran => (elapsed_ms, held(last.memory_bytes, now.memory_bytes)),
        Between::WasPaused => (0, 0),
    };
    UsageSums {
        running_ms,
        cpu_usec: since(last.cpu_usec, now.cpu_usec),
        memory_kib_s,
        disk_kib_s: held(last.disk_bytes, now.disk_bytes),
        sent_bytes: since(last.sent_bytes, now.sent_bytes),
        received_bytes: since(last.received_bytes, now.received_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1024 * 1024;

    fn look(at_ms: i64, cpu_usec: i64) -> MeterReading {
        MeterReading {
            at_ms,
            cpu_usec,
            sent_bytes: 10,
            received_bytes: 20,
            memory_bytes: 2 * MIB,
            disk_bytes: MIB,
        }
    }

    #[test]
    fn what_is_held_is_the_mean_of_two_looks_and_counters_tell_the_rest() {
        let now = MeterReading {
            memory_bytes: 4 * MIB,
            sent_bytes: 15,
            ..look(3_000, 700)
        };
        let expected = UsageSums {
            running_ms: 2_000,
            cpu_usec: 200,
            memory_kib_s: 2 * 3 * 1024,
            disk_kib_s: 2 * 1024,
            sent_bytes: 5,
            received_bytes: 0,
        };
        assert_eq!(used(&look(1_000, 500), &now, Between::Ran), expected);
        let paused = UsageSums {
            running_ms: 0,
            memory_kib_s: 0,
            ..expected
        };
        assert_eq!(used(&look(1_000, 500), &now, Between::WasPaused), paused);
    }

    #[test]
    fn neither_a_counter_nor_a_clock_that_goes_back_gives_anything_back() {
        let used = used(&look(5_000, 900), &look(4_000, 100), Between::Ran);
        assert_eq!(
            (used.running_ms, used.cpu_usec, used.disk_kib_s),
            (0, 100, 0)
        );
    }
}
