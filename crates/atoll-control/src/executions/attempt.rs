//! Trying again, where it is safe: with pauses that double.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often something is tried.
pub(crate) const ATTEMPTS_MAX: u32 = 3;
/// Pause after the first attempt.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// One attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Which one it was, beginning with 1.
    pub number: u32,
    /// What it met.
    pub message: String,
    /// How long was waited then, before the next one.
    pub waited_ms: u64,
}

/// Attempts of one call.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: Vec<Attempt>,
    /// How many of them were somewhere else.
    elsewhere: usize,
}

impl Attempts {
    /// Attempts after others that were somewhere else.
    pub(crate) fn after(failed: Vec<Attempt>) -> Self {
        Self {
            elsewhere: failed.len(),
            failed,
        }
    }

    /// Notes that an attempt failed, and waits before the next one; `false`
    /// when there is none.
    pub(crate) async fn again_after(&mut self, message: String) -> bool {
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).saturating_add(1);
        let here = count(self.failed.len() - self.elsewhere);
        let is_last = here >= ATTEMPTS_MAX;
        let pause = if is_last {
            Duration::ZERO
        } else {
            PAUSE_FIRST * 2_u32.pow(here - 1)
        };
        self.failed.push(Attempt {
            number: count(self.failed.len()),
            message,
            waited_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        });
        tokio::time::sleep(pause).await;
        !is_last
    }

    /// Those that failed.
    pub(crate) fn failed(self) -> Vec<Attempt> {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_attempts_end() {
        let mut attempts = Attempts::default();
        assert!(attempts.again_after("a".to_owned()).await);
        assert!(attempts.again_after("b".to_owned()).await);
        assert!(!attempts.again_after("c".to_owned()).await);
        let waited: Vec<u64> = attempts.failed.iter().map(|one| one.waited_ms).collect();
        assert_eq!(waited, [100, 200, 0]);
        let mut elsewhere = Attempts::after(attempts.failed());
        assert!(elsewhere.again_after("d".to_owned()).await);
        let last = elsewhere.failed().pop().unwrap();
        assert_eq!((last.number, last.waited_ms), (4, 100));
    }
}
