//! Moments to come. How far away they are is the caller's choice, and the
//! clock has an end: adding to it carelessly panics.

use std::time::Duration;

use tokio::time::Instant;

/// Further away than any process lives.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment `bound` after `start`, which is about now; no further away than
/// [`FAR`], which the clock reaches.
pub(crate) fn after(start: Instant, bound: Duration) -> Instant {
    start + bound.min(FAR)
}

/// The moment `bound` from now.
pub(crate) fn from_now(bound: Duration) -> Instant {
    after(Instant::now(), bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_never_left() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(after(now, second), now + second);
        for far in [FAR, FAR + second, Duration::MAX] {
            assert_eq!(after(now, far), now + FAR);
        }
    }
}
