//! The end of sessions: asked for, with their task, or due.

use std::sync::Arc;
use std::time::Duration;

use atoll_store::db::{
    DatabaseError, SandboxQuery, SandboxState, Session, SessionEnd, SessionId, SessionPlace,
    SessionQuery, SessionUse,
};
use futures_util::StreamExt as _;

use super::{LiveSession, SessionError, Sessions, Shared, lock};
use crate::executions::is_own;
use crate::identity::{Caller, Role, now_ms};
use crate::lifecycle::OperationError;

/// Time between two looks at what is due.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Looks between two times that what ended long ago is forgotten.
const FORGETTING_ROUNDS: u64 = 12;
/// Sessions and sandboxes that are ended at once.
const AT_ONCE: usize = 8;
/// How often the last use of a session is written, at most.
const USE_WRITTEN_MS: i64 = 60_000;
/// How long it is known how a session ended.
const ENDED_KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// Sessions of one tenant of which it is known how they ended, at most.
const ENDED_MAX: usize = 10_000;
/// Sandboxes that are looked at in one go.
const PAGE: usize = 100;

/// Why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// Somebody asked for it.
    Deleted,
    /// Its task is completed.
    TaskCompleted,
    /// Nobody used it.
    Idle,
    /// Its time is over.
    Expired,
    /// It never had a sandbox.
    NotMade,
}

impl EndReason {
    /// In one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::TaskCompleted => "task_completed",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::NotMade => "not_made",
        }
    }
}

/// What the completion of a task ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completed {
    /// Sessions.
    pub sessions: Vec<String>,
    /// Sandboxes, also those of these sessions.
    pub sandboxes: Vec<String>,
}

impl Sessions {
    /// A page of the sessions of `caller`, and where the next one begins.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list(
        &self,
        caller: &Caller,
        query: &SessionQuery,
    ) -> Result<(Vec<Session>, Option<SessionPlace>), DatabaseError> {
        let page = self
            .shared
            .database
            .list_sessions(caller.tenant, query)
            .await?;
        let rows = page.sessions.into_iter().map(|row| {
            let live = self.shared.live(row.session_id);
            live.map_or(row, |live| live.row())
        });
        Ok((rows.collect(), page.next))
    }

    /// Ends a session of the caller's own, with its sandbox.
    ///
    /// # Errors
    /// When there is none, or it has ended.
    pub async fn end(&self, caller: &Caller, id: SessionId) -> Result<(), SessionError> {
        let live = self.shared.usable(caller, id).await?;
        if !is_own(caller, Some(&live.row().agent_id)) {
            return Err(SessionError::OtherAgent);
        }
        self.finish(live, EndReason::Deleted).await
    }

    /// Ends everything of the caller's own that belongs to a task.
    ///
    /// # Errors
    /// When something could not be ended.
    pub async fn complete_task(
        &self,
        caller: &Caller,
        task: &str,
    ) -> Result<Completed, SessionError> {
        let mut completed = Completed::default();
        let is_of_task = |row: &Session| {
            row.tenant_id == caller.tenant
                && row.task_id.as_deref() == Some(task)
                && is_own(caller, Some(&row.agent_id))
        };
        let sessions: Vec<Arc<LiveSession>> = lock(&self.shared.active)
            .values()
            .filter(|live| is_of_task(&lock(&live.row)))
            .cloned()
            .collect();
        let mut ends = futures_util::stream::iter(sessions)
            .map(|live| async move {
                let ended = self.finish(Arc::clone(&live), EndReason::TaskCompleted);
                (ended.await, live.row())
            })
            .buffer_unordered(AT_ONCE);
        while let Some((ended, row)) = ends.next().await {
            match ended {
                Ok(()) => {
                    completed.sessions.push(row.session_id.to_string());
                    completed.sandboxes.extend(row.sandbox_id);
                }
                // Somebody else was faster.
                Err(SessionError::Ended(_)) => {}
                Err(error) => return Err(error),
            }
        }
        drop(ends);
        self.end_sandboxes(caller, task, &mut completed).await?;
        completed.sessions.sort();
        completed.sandboxes.sort();
        completed.sandboxes.dedup();
        Ok(completed)
    }

    /// Ends sandboxes of a task that belong to no session.
    async fn end_sandboxes(
        &self,
        caller: &Caller,
        task: &str,
        completed: &mut Completed,
    ) -> Result<(), SessionError> {
        let lifecycle = self.shared.places.lifecycle();
        let states = [
            SandboxState::Running,
            SandboxState::Resuming,
            SandboxState::Pausing,
            SandboxState::Paused,
        ];
        let mut query = SandboxQuery::new(&states, PAGE);
        query.task_id = Some(task.to_owned());
        loop {
            let (page, next) = lifecycle.list(caller, query.clone()).await?;
            let own = page.into_iter().map(|view| view.row);
            let own = own.filter(|row| is_own(caller, row.agent_id.as_deref()));
            let ids: Vec<String> = own.map(|row| row.sandbox_id).collect();
            let mut ends = futures_util::stream::iter(ids)
                .map(|id| async move { (lifecycle.kill(caller, &id).await, id) })
                .buffer_unordered(AT_ONCE);
            while let Some((killed, id)) = ends.next().await {
                match killed {
                    // Somebody else was faster.
                    Ok(()) | Err(OperationError::NotFound) => completed.sandboxes.push(id),
                    Err(error) => return Err(error.into()),
                }
            }
            let Some(next) = next else { return Ok(()) };
            query.after = Some(next);
        }
    }

    /// Ends a session: written first, then done. In a task of its own, so that
    /// who hangs up half-way leaves nothing half ended.
    pub(super) async fn finish(
        &self,
        live: Arc<LiveSession>,
        reason: EndReason,
    ) -> Result<(), SessionError> {
        let shared = Arc::clone(&self.shared);
        let ending = tokio::spawn(async move { shared.finish(&live, reason).await });
        ending.await.unwrap_or(Err(SessionError::Fenced))
    }

    /// Ends what nobody used for too long and what has lived for long enough,
    /// and forgets what ended a week ago, for ever.
    pub async fn keep_swept(&self) {
        for round in 1_u64.. {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            self.sweep(now_ms()).await;
            if round.is_multiple_of(FORGETTING_ROUNDS) {
                self.forget().await;
            }
        }
    }

    async fn forget(&self) {
        let before_ms = now_ms() - ENDED_KEPT_MS;
        let database = &self.shared.database;
        if let Err(error) = database.forget_sessions(before_ms, ENDED_MAX).await {
            tracing::warn!("sessions that ended are not forgotten: {error}");
        }
    }

    async fn sweep(&self, now_ms: i64) {
        let shared = &self.shared;
        let active: Vec<Arc<LiveSession>> = lock(&shared.active).values().cloned().collect();
        // One that is slow to end keeps the others from nothing.
        let looks = futures_util::stream::iter(active);
        let look = |live: Arc<LiveSession>| async move {
            shared.touch_if_busy(&live);
            let row = live.row();
            if let Some(reason) = due(&row, now_ms) {
                match self.finish(live, reason).await {
                    Ok(()) | Err(SessionError::Ended(_)) => {}
                    Err(error) => {
                        tracing::warn!("session {} should end: {error}", row.session_id);
                    }
                }
            } else {
                shared.note_use(&live, &row).await;
            }
        };
        looks.for_each_concurrent(AT_ONCE, look).await;
    }
}

/// Why a session ends now, if it does.
fn due(row: &Session, now_ms: i64) -> Option<EndReason> {
    if row.expires_at_ms <= now_ms {
        Some(EndReason::Expired)
    } else if row.last_used_at_ms.saturating_add(row.idle_ms) <= now_ms {
        Some(EndReason::Idle)
    } else {
        None
    }
}

impl Shared {
    /// What runs in its sandbox is a use of it.
    fn touch_if_busy(&self, live: &LiveSession) {
        let sandbox = lock(&live.row).sandbox_id.clone();
        if sandbox.is_some_and(|sandbox| self.places.is_busy(&sandbox)) {
            live.touch();
        }
    }

    pub(super) async fn finish(
        &self,
        live: &LiveSession,
        reason: EndReason,
    ) -> Result<(), SessionError> {
        let _gate = live.gate.lock().await;
        let row = live.row();
        if let Some(reason) = row.end_reason {
            return Err(SessionError::Ended(reason));
        }
        // Somebody may have used it while this waited.
        if reason == EndReason::Idle && due(&row, now_ms()) != Some(reason) {
            return Ok(());
        }
        // Somebody else who asked for it gave it a sandbox.
        if reason == EndReason::NotMade && row.sandbox_id.is_some() {
            return Ok(());
        }
        let end = SessionEnd {
            at_ms: now_ms(),
            reason: reason.as_str(),
        };
        let id: SessionId = row.session_id;
        self.database.end_session(&self.fence, id, end).await?;
        lock(&live.row).end_reason = Some(reason.as_str().to_owned());
        lock(&self.active).remove(&id);
        let Some(sandbox) = row.sandbox_id else {
            return Ok(());
        };
        let caller = Caller {
            tenant: row.tenant_id,
            key: row.key_id,
            role: Role::Agent,
            agent_id: None,
            task_id: None,
        };
        match self.places.lifecycle().kill(&caller, &sandbox).await {
            // Gone before.
            Ok(()) | Err(OperationError::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes when it was used last, now and then.
    async fn note_use(&self, live: &LiveSession, row: &Session) {
        let written_ms = lock(&live.row).last_used_at_ms;
        if row.last_used_at_ms - written_ms < USE_WRITTEN_MS {
            return;
        }
        lock(&live.row).last_used_at_ms = row.last_used_at_ms;
        let now = SessionUse {
            sandbox_id: row.sandbox_id.as_deref(),
            generation: row.generation,
            last_used_at_ms: row.last_used_at_ms,
        };
        let noting = self
            .database
            .note_session_use(&self.fence, row.session_id, now);
        if let Err(error) = noting.await {
            tracing::warn!(
                "the use of session {} is not written: {error}",
                row.session_id
            );
        }
    }
}
