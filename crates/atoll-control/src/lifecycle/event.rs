//! What is told of a sandbox, for all to read who may: one event for each
//! change of its state, written with the change.
//!
//! | change | event |
//! |---|---|
//! | it runs for the first time | `created`; for its parent, if it has one, `forked` |
//! | `Pausing` → `Paused` | `paused` |
//! | `Resuming` → `Running` | `resumed` |
//! | row → tombstone | `killed`, `expired` or `crashed`, by its outcome |
//! | its files are a snapshot | `snapshotted`, in a write of its own: repaired at the next start |
//! | a later server has taken it up | `adopted` |
//!
//! A pause that did not work changes nothing that clients can see, and tells nothing.

use atoll_engine::{Outcome, SandboxId};
use atoll_store::db::{
    Direction, EVENT_DETAIL_BYTES_MAX, Event, EventBounds, EventKind, EventPage, EventQuery,
    EventScope, NewEvent, Sandbox, SandboxState, TenantId,
};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::{Lifecycle, OperationError, Shared};
use crate::identity::{Caller, GrantError, KeyLifeline, now_ms};
use crate::templates::Snapshot;

/// How long events are kept.
const EVENTS_KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// How many events are kept, of all tenants together.
const EVENTS_KEPT: i64 = 100_000;
/// Longest reason, in characters.
const REASON_CHARACTERS_MAX: usize = 1024;

/// What happened to a pool. It is no tenant's, so only the operator is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolEvent<'a> {
    /// It has as many members as it should.
    Refilled {
        /// Of which template.
        template: &'a str,
        /// How many there are now.
        members: usize,
        /// How many of them are new.
        added: usize,
    },
    /// A member was not well, and is being replaced.
    MemberReplaced {
        /// Of which template.
        template: &'a str,
        /// The one that goes.
        member: &'a SandboxId,
        /// What was wrong with it.
        reason: &'a str,
    },
}

/// An event about `row`, with what is recorded of it and `more`.
pub(super) fn about(row: &Sandbox, kind: EventKind, more: Value) -> NewEvent {
    NewEvent {
        at_ms: now_ms(),
        sandbox_id: Some(row.sandbox_id.clone()),
        kind,
        detail: detail(Some(row), more),
        mark: None,
    }
}

/// What is told when `row` runs for the first time.
pub(super) fn of_birth(row: &Sandbox, parent: Option<&SandboxId>) -> Vec<NewEvent> {
    let Some(parent) = parent else {
        return vec![about(row, EventKind::Created, json!({}))];
    };
    let forked = NewEvent {
        sandbox_id: Some(parent.to_string()),
        ..about(row, EventKind::Forked, json!({"fork": row.sandbox_id}))
    };
    let origin = json!({"forked_from": parent.as_str()});
    vec![forked, about(row, EventKind::Created, origin)]
}

/// What is told when `row` holds still.
pub(super) fn of_pause(row: &Sandbox) -> Vec<NewEvent> {
    let reason = if row.end_at_ms <= now_ms() {
        "its time was over"
    } else {
        "it was asked for"
    };
    vec![about(row, EventKind::Paused, json!({"reason": reason}))]
}

/// What is told when `row` runs on: nothing of one that was never still.
pub(super) fn of_waking(row: &Sandbox) -> Vec<NewEvent> {
    match row.state {
        SandboxState::Resuming => vec![about(row, EventKind::Resumed, json!({}))],
        SandboxState::Creating
        | SandboxState::Running
        | SandboxState::Pausing
        | SandboxState::Paused
        | SandboxState::Killing => Vec::new(),
    }
}

/// What is told when `row` has ended so.
pub(super) fn of_end(row: &Sandbox, outcome: &Outcome) -> Vec<NewEvent> {
    let kind = match outcome {
        Outcome::Killed | Outcome::ClientGone => EventKind::Killed,
        Outcome::LifetimeEnded { .. } => EventKind::Expired,
        Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::MemoryLimit { .. }
        | Outcome::PidsLimit { .. }
        | Outcome::DiskFull { .. }
        | Outcome::InodesFull { .. }
        | Outcome::OpenFilesLimit { .. }
        | Outcome::OutputLimit { .. }
        | Outcome::Timeout { .. }
        | Outcome::Crashed { .. } => EventKind::Crashed,
    };
    let mut more = json!({"reason": reason(&outcome.to_string())});
    if row.state == SandboxState::Creating {
        // It never ran: nobody was told of a beginning.
        more["while"] = "creating".into();
    }
    vec![about(row, kind, more)]
}

fn reason(text: &str) -> String {
    text.chars().take(REASON_CHARACTERS_MAX).collect()
}

/// What is recorded of a sandbox, and `more`, within bounds: metadata that does
/// not fit is left out, and that is said.
fn detail(row: Option<&Sandbox>, more: Value) -> String {
    let mut object = Map::new();
    if let Some(row) = row {
        object.insert("template".to_owned(), row.template_name.as_str().into());
        object.insert("template_id".to_owned(), row.template_id.as_str().into());
        for (name, value) in [("agent_id", &row.agent_id), ("task_id", &row.task_id)] {
            if let Some(value) = value {
                object.insert(name.to_owned(), value.as_str().into());
            }
        }
    }
    if let Value::Object(more) = more {
        object.extend(more);
    }
    let metadata = row.map(|row| &row.metadata.0).filter(|map| !map.is_empty());
    if let Some(metadata) = metadata {
        let mut whole = object.clone();
        whole.insert("metadata".to_owned(), json!(metadata));
        let text = Value::Object(whole).to_string();
        if text.len() <= EVENT_DETAIL_BYTES_MAX {
            return text;
        }
        object.insert("metadata_omitted".to_owned(), true.into());
    }
    Value::Object(object).to_string()
}

impl Lifecycle {
    /// What happened to sandboxes of `caller`'s tenant.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events(
        &self,
        caller: &Caller,
        query: &EventQuery,
    ) -> Result<Vec<Event>, OperationError> {
        let database = &self.shared.foundation.database;
        let scope = EventScope::Tenant(caller.tenant);
        Ok(database.events(scope, query).await?)
    }

    /// The same after the one that `query` names, and where to go on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn events_after(
        &self,
        caller: &Caller,
        query: &EventQuery,
    ) -> Result<EventPage, OperationError> {
        let database = &self.shared.foundation.database;
        let scope = EventScope::Tenant(caller.tenant);
        Ok(database.events_after(scope, query).await?)
    }

    /// How far events go.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn event_bounds(&self) -> Result<EventBounds, OperationError> {
        Ok(self.shared.foundation.database.event_bounds().await?)
    }

    /// What `caller` needs to follow events as they come: the news that there may
    /// be some, and when the right to read them ends.
    ///
    /// # Errors
    /// When the key is over, or the database cannot be read.
    pub async fn follow_events(
        &self,
        caller: &Caller,
    ) -> Result<(watch::Receiver<()>, KeyLifeline), GrantError> {
        let foundation = &self.shared.foundation;
        let lifeline = foundation.access.lifeline_of(caller.key).await?;
        Ok((foundation.database.event_news(), lifeline))
    }
}

impl Shared {
    /// Stores what happened to a pool.
    pub(super) async fn tell_of_pool(&self, event: PoolEvent<'_>) {
        let (kind, sandbox_id, more) = match event {
            PoolEvent::Refilled {
                template,
                members,
                added,
            } => {
                let more = json!({"template": template, "members": members, "added": added});
                (EventKind::PoolRefilled, None, more)
            }
            PoolEvent::MemberReplaced {
                template,
                member,
                reason: why,
            } => {
                let more = json!({"template": template, "reason": reason(why)});
                let member = Some(member.to_string());
                (EventKind::PoolMemberReplaced, member, more)
            }
        };
        let event = NewEvent {
            at_ms: now_ms(),
            sandbox_id,
            kind,
            detail: detail(None, more),
            mark: None,
        };
        self.tell(None, &event).await;
    }

    /// Stores that a sandbox was found again.
    pub(super) async fn tell_of_adoption(&self, row: &Sandbox) {
        let more = json!({"state": row.state.as_str()});
        let event = about(row, EventKind::Adopted, more);
        self.tell(Some(row.tenant_id), &event).await;
    }

    /// Stores that the files of a sandbox are a snapshot, however often it is asked to.
    pub(super) async fn tell_of_snapshot(&self, snapshot: &Snapshot) {
        let Ok(tenant) = TenantId::try_from(snapshot.tenant.clone()) else {
            return; // nobody could read it
        };
        let database = &self.foundation.database;
        let row = database.sandbox(tenant, &snapshot.sandbox).await;
        // One that is gone by now has a snapshot all the same.
        let row = row.ok().flatten();
        let more = json!({
            "snapshot": snapshot.build.as_str(),
            "name": snapshot.name.as_ref().map(ToString::to_string),
            "tag": snapshot.tag,
        });
        let event = NewEvent {
            at_ms: now_ms(),
            sandbox_id: Some(snapshot.sandbox.clone()),
            kind: EventKind::Snapshotted,
            detail: detail(row.as_ref(), more),
            mark: Some(format!("snapshot:{}", snapshot.build.as_str())),
        };
        self.tell(Some(tenant), &event).await;
    }

    /// Tells of snapshots that a crash kept from being told of.
    pub(super) async fn tell_of_untold_snapshots(&self) {
        let oldest = EventQuery {
            limit: 1,
            direction: Direction::Forward,
            ..EventQuery::default()
        };
        let database = &self.foundation.database;
        let oldest = match database.events(EventScope::Node, &oldest).await {
            Ok(events) => events.first().map(|event| event.at_ms),
            Err(error) => {
                tracing::warn!("snapshots are not compared with events: {error}");
                return;
            }
        };
        // What is older than every event was told, and is forgotten.
        let Some(oldest) = oldest.and_then(|at_ms| u64::try_from(at_ms).ok()) else {
            return;
        };
        match self.foundation.catalog.snapshots() {
            Ok(snapshots) => {
                for snapshot in snapshots {
                    if !snapshot.is_retired && snapshot.template.created_at_ms >= oldest {
                        self.tell_of_snapshot(&snapshot).await;
                    }
                }
            }
            Err(error) => tracing::warn!("snapshots are not compared with events: {error}"),
        }
    }

    /// Deletes events that are older, or more, than are kept.
    pub(super) async fn forget_events(&self) {
        let database = &self.foundation.database;
        let forgetting = database.forget_events(now_ms() - EVENTS_KEPT_MS, EVENTS_KEPT);
        if let Err(error) = forgetting.await {
            tracing::warn!("old events are not forgotten: {error}");
        }
    }

    /// Stores an event that stands for itself. One that cannot be stored stops nothing.
    async fn tell(&self, tenant: Option<TenantId>, event: &NewEvent) {
        let foundation = &self.foundation;
        let telling = foundation
            .database
            .append_event(&foundation.fence, tenant, event);
        if let Err(error) = telling.await {
            tracing::warn!("the event `{}` is not stored: {error}", event.kind);
        }
    }
}

#[cfg(test)]
mod tests;
