//! Times of one thing done many times, and how they are shown.

use std::time::Duration;

use crate::support::{Result, percentile};

/// How each of many went.
#[derive(Default)]
pub(crate) struct Times {
    took: Vec<Duration>,
    pub(crate) failed: usize,
}

impl Times {
    pub(crate) fn add(&mut self, result: Result<Duration>) {
        match result {
            Ok(took) => self.took.push(took),
            Err(error) => {
                self.failed += 1;
                eprintln!("failed: {error}");
            }
        }
    }

    pub(crate) fn median(&self) -> Duration {
        percentile(&self.took, 50)
    }

    pub(crate) fn row(&self, tier: &str, template: &str, what: &str) {
        let count = self.took.len() + self.failed;
        println!(
            "{tier:<10} {template:<25} {what:<28} p50 {:>8.2?}  p95 {:>8.2?}  p99 {:>8.2?}  success {}/{count}",
            self.median(),
            percentile(&self.took, 95),
            percentile(&self.took, 99),
            self.took.len(),
        );
    }
}
