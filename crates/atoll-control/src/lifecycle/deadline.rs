//! The end of a sandbox's time, by a clock that nobody sets.
//!
//! Rows and clients know a moment on the wall. It is turned into a moment of the
//! monotonic clock once: when a task begins, and when the moment is changed. What
//! happens to the clock on the wall after that moves no end; the monitor, which
//! keeps the time of a sandbox without a server, does the same.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// No sandbox lives longer; what is beyond the clock's reach is as good as never.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// When the time of a sandbox is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    /// The moment that this was made of.
    end_at_ms: i64,
    at: Instant,
}

impl Deadline {
    /// The moment `end_at_ms`, seen at `now_ms`.
    pub(super) fn new(end_at_ms: i64, now_ms: i64) -> Self {
        let left = u64::try_from(end_at_ms.saturating_sub(now_ms)).unwrap_or(0);
        Self {
            end_at_ms,
            at: Instant::now() + Duration::from_millis(left).min(FAR),
        }
    }

    /// Becomes that of another moment, if it is another one.
    pub(super) fn follow(&mut self, end_at_ms: i64, now_ms: i64) {
        if self.end_at_ms != end_at_ms {
            *self = Self::new(end_at_ms, now_ms);
        }
    }

    /// Comes `pause` from now, whatever the row says: what was to be done at
    /// `end_at_ms` did not work.
    pub(super) fn again_after(&mut self, pause: Duration, end_at_ms: i64) {
        *self = Self {
            end_at_ms,
            at: Instant::now() + pause,
        };
    }

    /// Milliseconds until then.
    pub(super) fn left_ms(self) -> i64 {
        let left = self.at.saturating_duration_since(Instant::now());
        i64::try_from(left.as_millis()).unwrap_or(i64::MAX)
    }

    /// Waits for it.
    pub(super) async fn reached(self) {
        sleep_until(self.at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;
    const HOUR: i64 = 3_600_000;

    async fn passes_after(deadline: Deadline) -> Duration {
        let begun = Instant::now();
        deadline.reached().await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_moves_no_end() {
        for now_ms in [NOW - 24 * HOUR, NOW + 24 * HOUR] {
            let mut deadline = Deadline::new(NOW + 1000, NOW);
            deadline.follow(NOW + 1000, now_ms);
            assert_eq!(passes_after(deadline).await, Duration::from_secs(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_end_counts_from_the_clock_as_it_is_then() {
        let mut deadline = Deadline::new(NOW + HOUR, NOW);
        // The clock was set back by a day, and then the timeout was set to 5 s.
        let now_ms = NOW - 24 * HOUR;
        deadline.follow(now_ms + 5000, now_ms);
        assert_eq!(passes_after(deadline).await, Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn what_did_not_work_is_tried_again_later() {
        let mut deadline = Deadline::new(NOW, NOW);
        assert_eq!(passes_after(deadline).await, Duration::ZERO);
        // Its row says another moment by then: it was about to be paused, and runs on.
        deadline.again_after(Duration::from_secs(15), NOW + 1);
        deadline.follow(NOW + 1, NOW + HOUR);
        assert_eq!(passes_after(deadline).await, Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn no_moment_is_too_far() {
        for end_at_ms in [i64::MAX, i64::MIN] {
            let _any = Deadline::new(end_at_ms, NOW);
        }
    }
}
