//! Who tells one hook: in order, again after a failure, and on after a restart.

use std::time::{Duration, Instant};

use atoll_control::identity::now_ms;
use atoll_store::db::{Database, DatabaseError, Event, EventPage, EventQuery, EventScope, Fence};
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
/// How often it is stored, at most, how far events were passed over that the
/// hook does not want.
const STORE_EVERY: Duration = Duration::from_secs(60);
/// How often one event is tried to be told, about an hour in all.
const ATTEMPTS_MAX: u32 = 20;
/// Longest pause after the first failure, and after any.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How far a hook has been told.
struct Told {
    sequence: i64,
    /// What a restart would go on from.
    stored: i64,
    stored_at: Instant,
}

/// What a look at the store found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    News,
    Nothing,
}

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
            match self.look(&mut told).await {
                Ok(Look::News) => {}
                Ok(Look::Nothing) => {
                    // Whichever comes first, it is time to look.
                    let _ = timeout(LOOK_EVERY, self.news.changed()).await;
                }
                Err(error) => {
                    tracing::warn!("events for {} wait: {error}", self.hook.place());
                    sleep(STORE_PAUSE).await;
                }
            }
        }
    }

    /// Tells it what there is after what it was told.
    async fn look(&self, told: &mut Told) -> Result<Look, DatabaseError> {
        let page = self.after(told.sequence).await?;
        if let Some(forgotten) = page.missed {
            tracing::error!(
                "{} is never told of some events: it knows those up to {}, and those up to {forgotten} are not kept any more",
                self.hook.place(),
                told.sequence
            );
        }
        let look = if page.events.is_empty() {
            Look::Nothing
        } else {
            Look::News
        };
        for event in page.events {
            told.sequence = event.sequence;
            self.tell(event).await;
            self.store(told).await;
        }
        told.sequence = page.next;
        if told.sequence > told.stored && told.stored_at.elapsed() >= STORE_EVERY {
            self.store(told).await;
        }
        Ok(look)
    }

    /// Stores how far it has been told.
    async fn store(&self, told: &mut Told) {
        let id = self.hook.id();
        let stored = self
            .database
            .advance_webhook(&self.fence, &id, told.sequence);
        match stored.await {
            Ok(()) => told.stored = told.sequence,
            // After a restart it is told again: at least once, as promised.
            Err(error) => {
                tracing::warn!("it is not stored what {} knows: {error}", self.hook.place());
            }
        }
        told.stored_at = Instant::now();
    }

    /// How far it has been told before.
    async fn begin(&self) -> Told {
        loop {
            let id = self.hook.id();
            match self.database.webhook_cursor(&self.fence, &id).await {
                Ok(sequence) => {
                    return Told {
                        sequence,
                        stored: sequence,
                        stored_at: Instant::now(),
                    };
                }
                Err(error) => {
                    tracing::warn!("events for {} wait: {error}", self.hook.place());
                    sleep(STORE_PAUSE).await;
                }
            }
        }
    }

    async fn after(&self, sequence: i64) -> Result<EventPage, DatabaseError> {
        let query = EventQuery {
            from: Some(sequence),
            kinds: self.hook.kinds.clone(),
            limit: PAGE,
            ..EventQuery::default()
        };
        self.database.events_after(EventScope::Node, &query).await
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
    use atoll_store::db::{EventKind, Location, NewEvent, NodeId};

    use super::super::attempt::client;
    use super::*;

    async fn courier(home: &std::path::Path) -> Courier {
        let node = NodeId::of_home(home).unwrap();
        let database = Database::open(&Location::of_home(home), node).await;
        let database = database.unwrap();
        let fence = database.begin_epoch(0).await.unwrap();
        let kinds = ["killed".to_owned()];
        let hook = Hook::new("http://127.0.0.1:1/", "0123456789abcdef", &kinds).unwrap();
        let client = client(std::slice::from_ref(&hook)).unwrap();
        Courier::new(database, fence, client, hook)
    }

    async fn happen(courier: &Courier) {
        let unwanted = NewEvent {
            at_ms: 0,
            sandbox_id: None,
            kind: EventKind::PoolRefilled,
            detail: "{}".to_owned(),
            mark: None,
        };
        let append = courier
            .database
            .append_event(&courier.fence, None, &unwanted);
        append.await.unwrap();
    }

    async fn stored(courier: &Courier) -> i64 {
        courier.begin().await.stored
    }

    #[tokio::test]
    async fn what_a_hook_does_not_want_is_passed_once_and_stored_now_and_then() {
        let home = tempfile::tempdir().unwrap();
        let courier = courier(home.path()).await;
        let mut told = courier.begin().await;
        for _ in 0..3 {
            happen(&courier).await;
        }
        assert_eq!(courier.look(&mut told).await.unwrap(), Look::Nothing);
        assert_eq!((told.sequence, stored(&courier).await), (3, 0));
        told.stored_at -= STORE_EVERY;
        happen(&courier).await;
        assert_eq!(courier.look(&mut told).await.unwrap(), Look::Nothing);
        assert_eq!((told.sequence, stored(&courier).await), (4, 4));
        // Nothing new is nothing to write.
        let long_ago = told.stored_at - STORE_EVERY;
        told.stored_at = long_ago;
        assert_eq!(courier.look(&mut told).await.unwrap(), Look::Nothing);
        assert_eq!(told.stored_at, long_ago);
    }

    #[tokio::test]
    async fn a_hook_that_lags_goes_on_after_what_is_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let courier = courier(home.path()).await;
        let mut told = courier.begin().await;
        for _ in 0..3 {
            happen(&courier).await;
        }
        courier.database.forget_events(0, 1).await.unwrap();
        let page = courier.after(told.sequence).await.unwrap();
        assert_eq!(page.missed, Some(2));
        assert_eq!(courier.look(&mut told).await.unwrap(), Look::Nothing);
        assert_eq!(courier.after(told.sequence).await.unwrap().missed, None);
    }

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
