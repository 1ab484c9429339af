//! Who tells one hook: in order, again after a failure, and on after a restart.

use std::time::Duration;

use atoll_control::identity::now_ms;
use atoll_store::db::{Database, DatabaseError, Event, EventQuery, EventScope, Fence};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::attempt::{HookClient, attempt};
use super::hook::Hook;
use crate::control_plane::wire_event;

/// Events that are read at once.
const PAGE: usize = 50;
/// How often the store is looked at without news.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Pause after the store could not be read.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// How often one event is tried to be told, about an hour in all.
const ATTEMPTS_MAX: u32 = 20;
/// Longest pause after the first failure, and after any.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Tells one hook what happens.
pub(super) struct Courier {
    database: Database,
    fence: Fence,
    client: HookClient,
    hook: Hook,
    news: watch::Receiver<()>,
}

impl Courier {
    pub(super) fn new(database: Database, fence: Fence, client: HookClient, hook: Hook) -> Self {
        Self {
            news: database.event_news(),
            database,
            fence,
            client,
            hook,
        }
    }

    /// Tells it everything, for ever.
    pub(super) async fn run(mut self) {
        let mut told = self.begin().await;
        loop {
            // Before the look: what is written after it rings again.
            self.news.borrow_and_update();
            let events = match self.after(told).await {
                Ok(events) => events,
                Err(error) => {
                    tracing::warn!("events for {} wait: {error}", self.hook.place());
                    sleep(STORE_PAUSE).await;
                    continue;
                }
            };
            if events.is_empty() {
                // Whichever comes first, it is time to look.
                let _ = timeout(LOOK_EVERY, self.news.changed()).await;
            }
            for event in events {
                let sequence = event.sequence;
                self.tell(event).await;
                told = sequence;
                let id = self.hook.id();
                let stored = self.database.advance_webhook(&self.fence, &id, told);
                if let Err(error) = stored.await {
                    // After a restart it is told again: at least once, as promised.
                    tracing::warn!("it is not stored what {} knows: {error}", self.hook.place());
                }
            }
        }
    }

    /// How far it has been told before.
    async fn begin(&self) -> i64 {
        loop {
            let id = self.hook.id();
            let found = self.database.webhook_cursor(&self.fence, &id).await;
            let bounds = self.database.event_bounds().await;
            match (found, bounds) {
                (Ok(told), Ok(bounds)) => {
                    if told < bounds.forgotten {
                        let place = self.hook.place();
                        tracing::warn!(
                            "{place} was away for too long: some events are not kept any more"
                        );
                    }
                    return told;
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!("events for {} wait: {error}", self.hook.place());
                    sleep(STORE_PAUSE).await;
                }
            }
        }
    }

    async fn after(&self, told: i64) -> Result<Vec<Event>, DatabaseError> {
        let query = EventQuery {
            from: Some(told),
            kinds: self.hook.kinds.clone(),
            limit: PAGE,
            ..EventQuery::default()
        };
        self.database.events(EventScope::Node, &query).await
    }

    /// Tells of one event, until it is heard or has been tried often enough.
    async fn tell(&self, event: Event) {
        let event = wire_event(event);
        let id = format!("evt_{}", event.id);
        // Numbers, texts and maps of them always have a form in JSON.
        let body = serde_json::to_string(&event).unwrap_or_default();
        for failures in 1..=ATTEMPTS_MAX {
            // The moment of the attempt: who listens refuses old ones.
            let timestamp_s = now_ms() / 1000;
            match attempt(&self.client, &self.hook, &id, timestamp_s, &body).await {
                Ok(()) => return,
                Err(why) if failures == ATTEMPTS_MAX => {
                    let place = self.hook.place();
                    tracing::error!("{place} is never told of {id}: {why}, {failures} times");
                }
                Err(why) => {
                    let place = self.hook.place();
                    tracing::warn!("{place} is told of {id} later: {why}");
                    sleep(pause_after(failures, random_fraction())).await;
                }
            }
        }
    }
}

/// How long to wait after so many failures: twice as long each time, and between
/// half and all of that, so that many who failed together do not come back together.
fn pause_after(failures: u32, fraction: f64) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
    let whole = PAUSE_FIRST.saturating_mul(doubled).min(PAUSE_MAX);
    whole.mul_f64(0.5 + fraction.clamp(0.0, 1.0) / 2.0)
}

/// From 0 to 1. Without randomness, the middle.
fn random_fraction() -> f64 {
    getrandom::u32().map_or(0.5, |number| f64::from(number) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_never_all_the_same() {
        let seconds = |failures| pause_after(failures, 1.0).as_secs();
        let pauses: Vec<u64> = (1..=11).map(seconds).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(pause_after(u32::MAX, 1.0), PAUSE_MAX);
        assert_eq!(pause_after(3, 0.0), Duration::from_secs(2));
        assert_eq!(pause_after(3, 0.5), Duration::from_secs(3));
    }

    #[test]
    fn an_event_is_tried_for_about_an_hour() {
        let all: Duration = (1..ATTEMPTS_MAX)
            .map(|failures| pause_after(failures, 0.5))
            .sum();
        let minutes = all.as_secs() / 60;
        assert!((30..90).contains(&minutes), "{minutes}");
    }
}
