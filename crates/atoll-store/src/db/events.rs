//! What happened to sandboxes: written with the change that it tells of, read
//! in order, kept for a while.
//!
//! **Invariant**: numbers grow, and become visible in their order. A number may
//! be missing; none comes after a higher one was read.

use std::fmt;

use tokio::sync::watch;

use super::state::words;
use super::{
    ChangeError, Database, DatabaseError, Direction, Fence, TenantId, read, transaction, write,
};

/// Longest detail, in bytes of JSON. Who writes a longer one gets none of it.
pub const EVENT_DETAIL_BYTES_MAX: usize = 8 * 1024;

/// What stands for a detail that was too long.
const TOO_LONG: &str = r#"{"truncated":true}"#;

words! {
    /// What happened.
    EventKind, "kind of event", {
        /// A sandbox takes commands.
        Created => "created",
        /// It holds still.
        Paused => "paused",
        /// It runs on.
        Resumed => "resumed",
        /// Its files are a template.
        Snapshotted => "snapshotted",
        /// Another one began with its files.
        Forked => "forked",
        /// Somebody ended it.
        Killed => "killed",
        /// Its time was over.
        Expired => "expired",
        /// It ended, and nobody wanted that.
        Crashed => "crashed",
        /// A server found it running after a restart.
        Adopted => "adopted",
        /// A pool has as many members as it should.
        PoolRefilled => "pool_refilled",
        /// A member of a pool was not well, and another took its place.
        PoolMemberReplaced => "pool_member_replaced",
    }
}

/// An event to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// When it happened.
    pub at_ms: i64,
    /// What it happened to, if to a sandbox.
    pub sandbox_id: Option<String>,
    /// What happened.
    pub kind: EventKind,
    /// JSON: an object with more, at most [`EVENT_DETAIL_BYTES_MAX`].
    pub detail: String,
    /// Of several events with the same mark the first is kept.
    pub mark: Option<String>,
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Event {
    /// Its number.
    pub sequence: i64,
    /// When it happened.
    pub at_ms: i64,
    /// What it happened to, if to a sandbox.
    pub sandbox_id: Option<String>,
    /// What happened.
    #[sqlx(try_from = "String")]
    pub kind: EventKind,
    /// JSON: an object with more.
    pub detail: String,
    /// Where it happened.
    pub node_id: String,
}

/// Whose events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventScope {
    /// Those of a tenant's sandboxes.
    Tenant(TenantId),
    /// All of this node, also those that are no tenant's.
    Node,
}

/// Which events to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Only events after this one or, read backwards, before it.
    pub from: Option<i64>,
    /// Which come first.
    pub direction: Direction,
    /// Only those of this sandbox.
    pub sandbox: Option<String>,
    /// Only these; none is all.
    pub kinds: Vec<EventKind>,
    /// How many at most.
    pub limit: usize,
}

impl EventQuery {
    /// The kinds as the statements compare them: each between two commas.
    fn kinds_text(&self) -> String {
        if self.kinds.is_empty() {
            return String::new();
        }
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.as_str()).collect();
        format!(",{},", kinds.join(","))
    }
}

/// How far the events go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct EventBounds {
    /// Number of the newest one; 0 when there never was one.
    pub newest: i64,
    /// The highest number that is not kept any more.
    pub forgotten: i64,
}

/// What a reader finds who goes on from where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// What it asked for, the oldest first.
    pub events: Vec<Event>,
    /// Where it goes on: also after events that it did not ask for, so that
    /// nobody reads them again.
    pub next: i64,
    /// When events after where it was are not kept any more: the last of them.
    pub missed: Option<i64>,
}

macro_rules! select {
    ($whose:literal, $beyond:literal, $order:literal) => {
        concat!(
            "SELECT * FROM events WHERE ",
            $whose,
            " = $1 AND sequence ",
            $beyond,
            " $2
               AND ($3 = '' OR sandbox_id = $3)
               AND ($4 = '' OR $4 LIKE '%,' || kind || ',%')
             ORDER BY sequence ",
            $order,
            " LIMIT $5"
        )
    };
}

/// Adds events about one change, in its transaction.
macro_rules! insert_events {
    ($transaction:ident, $fence:expr, $tenant:expr, $events:expr) => {
        for event in $events {
            let sequence: i64 = sqlx::query_scalar(
                "UPDATE event_counter SET newest = newest + 1 WHERE name = 'events'
                 RETURNING newest",
            )
            .fetch_one(&mut *$transaction)
            .await?;
            sqlx::query(
                "INSERT INTO events (sequence, at_ms, tenant_id, sandbox_id, kind, detail, mark, node_id, epoch)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
                 ON CONFLICT (mark) DO NOTHING",
            )
            .bind(sequence)
            .bind(event.at_ms)
            .bind($tenant)
            .bind(&event.sandbox_id)
            .bind(event.kind.as_str())
            .bind($crate::db::events::bounded(&event.detail))
            .bind(&event.mark)
            .bind($fence.node.as_str())
            .bind($fence.epoch)
            .execute(&mut *$transaction)
            .await?;
        }
    };
}

pub(super) use insert_events;

/// The detail, or that it was too long. PostgreSQL's texts cannot hold NUL, which
/// JSON never holds.
pub(super) fn bounded(detail: &str) -> &str {
    if detail.len() > EVENT_DETAIL_BYTES_MAX {
        return TOO_LONG;
    }
    detail
}

/// Tells this process that there may be new events. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct EventBell(watch::Sender<()>);

impl EventBell {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    pub(super) fn ring(&self) {
        self.0.send_replace(());
    }
}

impl Database {
    /// Is told of every event that this process writes. Those of other
    /// processes are found by looking.
    #[must_use]
    pub fn event_news(&self) -> watch::Receiver<()> {
        self.event_bell.0.subscribe()
    }

    /// Stores an event that no change of a sandbox goes with.
    ///
    /// # Errors
    /// [`Lost`](super::Lost) when `fence` is not the newest of its node.
    pub async fn append_event(
        &self,
        fence: &Fence,
        tenant: Option<TenantId>,
        event: &NewEvent,
    ) -> Result<(), ChangeError> {
        let tenant = tenant.map(|tenant| tenant.to_string());
        let is_ours: bool = transaction!(self, |transaction| {
            let ours: Option<i64> =
                sqlx::query_scalar("SELECT epoch FROM nodes WHERE node_id = $1 AND epoch = $2")
                    .bind(fence.node.as_str())
                    .bind(fence.epoch)
                    .fetch_optional(&mut *transaction)
                    .await?;
            if ours.is_some() {
                insert_events!(transaction, fence, &tenant, std::iter::once(event));
            }
            ours.is_some()
        });
        if !is_ours {
            let epoch = self.epoch_of(&fence.node).await?;
            return Err(super::Lost::Fenced { epoch }.into());
        }
        self.event_bell.ring();
        Ok(())
    }

    /// Events of `scope`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events(
        &self,
        scope: EventScope,
        query: &EventQuery,
    ) -> Result<Vec<Event>, DatabaseError> {
        let (statement, edge) = match (scope, query.direction) {
            (EventScope::Tenant(_), Direction::Forward) => (select!("tenant_id", ">", ""), 0),
            (EventScope::Tenant(_), Direction::Backward) => {
                (select!("tenant_id", "<", "DESC"), i64::MAX)
            }
            (EventScope::Node, Direction::Forward) => (select!("node_id", ">", ""), 0),
            (EventScope::Node, Direction::Backward) => (select!("node_id", "<", "DESC"), i64::MAX),
        };
        let whose = match scope {
            EventScope::Tenant(tenant) => tenant.to_string(),
            EventScope::Node => self.node.as_str().to_owned(),
        };
        Ok(read!(self, |pool| sqlx::query_as(statement)
            .bind(&whose)
            .bind(query.from.unwrap_or(edge))
            .bind(query.sandbox.as_deref().unwrap_or_default())
            .bind(query.kinds_text())
            .bind(i64::try_from(query.limit).unwrap_or(i64::MAX))
            .fetch_all(pool)
            .await?))
    }

    /// Events of `scope` after the one that `query` names, and where to go on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_after(
        &self,
        scope: EventScope,
        query: &EventQuery,
    ) -> Result<EventPage, DatabaseError> {
        let query = EventQuery {
            direction: Direction::Forward,
            ..query.clone()
        };
        // Before the page: numbers become visible in their order, so a page that
        // is not full has everything up to this one.
        let bounds = self.event_bounds().await?;
        let events = self.events(scope, &query).await?;
        let from = query.from.unwrap_or(0);
        let last = events.last().map_or(from, |event| event.sequence);
        let is_full = events.len() >= query.limit;
        Ok(EventPage {
            next: if is_full {
                last
            } else {
                last.max(bounds.newest)
            },
            missed: (from < bounds.forgotten).then_some(bounds.forgotten),
            events,
        })
    }

    /// How far the events go.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn event_bounds(&self) -> Result<EventBounds, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT newest, forgotten FROM event_counter WHERE name = 'events'"
        )
        .fetch_one(pool)
        .await?))
    }

    /// Deletes events from before `before_ms`, and all but the newest `kept`.
    /// Returns how many went.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn forget_events(&self, before_ms: i64, kept: i64) -> Result<u64, DatabaseError> {
        Ok(transaction!(self, |transaction| {
            // Held until the end, so that nobody adds one meanwhile. By number, as
            // readers go on: a clock that was set back makes no hole.
            let last: i64 = sqlx::query_scalar(
                "UPDATE event_counter SET forgotten = CASE
                     WHEN newest - $1 > forgotten THEN newest - $1 ELSE forgotten END
                 WHERE name = 'events' RETURNING forgotten",
            )
            .bind(kept)
            .fetch_one(&mut *transaction)
            .await?;
            let old: Option<i64> =
                sqlx::query_scalar("SELECT MAX(sequence) FROM events WHERE at_ms < $1")
                    .bind(before_ms)
                    .fetch_one(&mut *transaction)
                    .await?;
            let last = old.unwrap_or(0).max(last);
            sqlx::query("UPDATE event_counter SET forgotten = $1 WHERE name = 'events'")
                .bind(last)
                .execute(&mut *transaction)
                .await?;
            sqlx::query("DELETE FROM events WHERE sequence <= $1")
                .bind(last)
                .execute(&mut *transaction)
                .await?
                .rows_affected()
        }))
    }

    /// How far `hook` of this node has been told. A new one begins with what comes next.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn webhook_cursor(&self, fence: &Fence, hook: &str) -> Result<i64, DatabaseError> {
        Ok(transaction!(self, |transaction| {
            sqlx::query(
                "INSERT INTO webhook_cursors (node_id, hook, sequence, epoch)
                 SELECT $1, $2, newest, $3 FROM event_counter WHERE name = 'events'
                 ON CONFLICT (node_id, hook) DO NOTHING",
            )
            .bind(fence.node.as_str())
            .bind(hook)
            .bind(fence.epoch)
            .execute(&mut *transaction)
            .await?;
            sqlx::query_scalar(
                "SELECT sequence FROM webhook_cursors WHERE node_id = $1 AND hook = $2",
            )
            .bind(fence.node.as_str())
            .bind(hook)
            .fetch_one(&mut *transaction)
            .await?
        }))
    }

    /// Stores that `hook` has been told up to `sequence`. It never goes back, and a
    /// server that is not in charge any more moves nothing.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn advance_webhook(
        &self,
        fence: &Fence,
        hook: &str,
        sequence: i64,
    ) -> Result<(), DatabaseError> {
        write!(self, |pool| sqlx::query(
            "UPDATE webhook_cursors SET sequence = $3, epoch = $4
             WHERE node_id = $1 AND hook = $2 AND sequence < $3
               AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $1 AND epoch = $4)",
        )
        .bind(fence.node.as_str())
        .bind(hook)
        .bind(sequence)
        .bind(fence.epoch)
        .execute(pool)
        .await
        .map(|_| ())?);
        Ok(())
    }

    /// Forgets every hook of this node that is not among `configured`: one that
    /// comes back begins anew.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn keep_webhooks(
        &self,
        fence: &Fence,
        configured: &[String],
    ) -> Result<(), DatabaseError> {
        let known: Vec<String> = read!(self, |pool| sqlx::query_scalar(
            "SELECT hook FROM webhook_cursors WHERE node_id = $1"
        )
        .bind(fence.node.as_str())
        .fetch_all(pool)
        .await?);
        for gone in known.iter().filter(|hook| !configured.contains(hook)) {
            write!(self, |pool| sqlx::query(
                "DELETE FROM webhook_cursors WHERE node_id = $1 AND hook = $2"
            )
            .bind(fence.node.as_str())
            .bind(gone)
            .execute(pool)
            .await
            .map(|_| ())?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_that_is_too_long_says_so() {
        let fits = format!("{:1$}", "{}", EVENT_DETAIL_BYTES_MAX);
        assert_eq!(bounded(&fits), fits);
        assert_eq!(bounded(&format!("{fits} ")), TOO_LONG);
    }

    #[test]
    fn kinds_are_compared_whole() {
        let query = EventQuery {
            kinds: vec![EventKind::Killed, EventKind::PoolRefilled],
            ..EventQuery::default()
        };
        assert_eq!(query.kinds_text(), ",killed,pool_refilled,");
        assert_eq!(EventQuery::default().kinds_text(), "");
    }
}
