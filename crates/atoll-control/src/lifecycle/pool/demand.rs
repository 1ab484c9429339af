//! How many members a pool should have: a number, or what the last minutes
//! asked for.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The span whose arrivals are counted together: about as long as it takes to
/// fill a pool again after a burst.
const SPAN: Duration = Duration::from_secs(10);
/// Spans that are remembered: five minutes.
const SPANS_KEPT: u32 = 30;

/// How large a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolSize {
    /// Always as many.
    Fixed(usize),
    /// As many as the busiest ten seconds of the last five minutes asked for,
    /// and one more; never more than `max`.
    Adaptive {
        /// Most members.
        max: usize,
    },
}

/// Arrivals of the last minutes, span by span.
#[derive(Debug)]
pub(super) struct Demand {
    /// When the newest span began.
    newest: Instant,
    /// The newest last.
    spans: VecDeque<usize>,
}

impl Demand {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            newest: now,
            spans: VecDeque::from([0]),
        }
    }

    /// Somebody asked for a sandbox.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.catch_up(now);
        if let Some(newest) = self.spans.back_mut() {
            *newest += 1;
        }
    }

    /// How many members a pool of this size should have now.
    pub(super) fn wanted(&mut self, size: PoolSize, now: Instant) -> usize {
        match size {
            PoolSize::Fixed(members) => members,
            PoolSize::Adaptive { max } => {
                self.catch_up(now);
                let busiest = self.spans.iter().max().copied().unwrap_or(0);
                busiest.saturating_add(1).min(max)
            }
        }
    }

    fn catch_up(&mut self, now: Instant) {
        if now.saturating_duration_since(self.newest) > SPAN * SPANS_KEPT {
            *self = Self::new(now);
        }
        while now.saturating_duration_since(self.newest) >= SPAN {
            self.newest += SPAN;
            self.spans.push_back(0);
            if self.spans.len() > SPANS_KEPT as usize {
                self.spans.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTIVE: PoolSize = PoolSize::Adaptive { max: 8 };

    #[test]
    fn a_fixed_pool_does_not_care_who_comes() {
        let now = Instant::now();
        let mut demand = Demand::new(now);
        assert_eq!(demand.wanted(PoolSize::Fixed(3), now), 3);
        demand.arrived(now);
        assert_eq!(demand.wanted(PoolSize::Fixed(3), now), 3);
        assert_eq!(demand.wanted(PoolSize::Fixed(0), now), 0);
    }

    #[test]
    fn an_adaptive_pool_has_what_the_busiest_span_asked_for_and_one_more() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut demand = Demand::new(begun);
        assert_eq!(demand.wanted(ADAPTIVE, begun), 1, "nobody came yet");
        for second in [1, 2, 9] {
            demand.arrived(at(second));
        }
        assert_eq!(demand.wanted(ADAPTIVE, at(9)), 4);
        // Another span, with fewer: the busiest counts.
        demand.arrived(at(11));
        assert_eq!(demand.wanted(ADAPTIVE, at(11)), 4);
        for _ in 0..100 {
            demand.arrived(at(50));
        }
        assert_eq!(demand.wanted(ADAPTIVE, at(50)), 8, "never more than `max`");
        assert_eq!(
            demand.wanted(PoolSize::Adaptive { max: 0 }, at(50)),
            0,
            "not even the one"
        );
    }

    #[test]
    fn a_burst_is_forgotten_after_five_minutes() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut demand = Demand::new(begun);
        for _ in 0..3 {
            demand.arrived(at(5));
        }
        assert_eq!(demand.wanted(ADAPTIVE, at(299)), 4);
        assert_eq!(demand.wanted(ADAPTIVE, at(300)), 1);
        demand.arrived(at(301));
        assert_eq!(
            demand.wanted(ADAPTIVE, at(100_000)),
            1,
            "after a long silence"
        );
        assert!(demand.spans.len() <= SPANS_KEPT as usize);
    }
}
