//! A new session, or the one that the agent has for this task.

use std::sync::Arc;
use std::time::Duration;

use atoll_store::db::{Admitted, Metadata, Session, SessionId};

use super::{EndReason, LiveSession, NewSession, Recovered, SessionError, Sessions, lock, millis};
use crate::identity::{Caller, now_ms};

/// How a session was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is new.
    New,
    /// The agent had it for this task.
    Earlier,
}

/// How often a session is asked for again that ended before it could be used.
const ATTEMPTS: usize = 3;

/// A session that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gotten {
    /// The session.
    pub session: Session,
    /// How it was found.
    pub found: Found,
    /// What happened to the sandbox that it had.
    pub recovered: Option<Recovered>,
}

impl Sessions {
    /// The session that the agent has for this task, or a new one whose
    /// sandbox takes commands.
    ///
    /// # Errors
    /// When there is none, and none can be made.
    pub async fn get_or_create(
        &self,
        caller: &Caller,
        new: NewSession,
    ) -> Result<Gotten, SessionError> {
        new.check()?;
        let shared = Arc::clone(&self.shared);
        let caller = caller.clone();
        // In a task of its own: who hangs up half-way leaves nothing half made.
        let made = tokio::spawn(async move { Self { shared }.make(&caller, new).await });
        made.await.unwrap_or(Err(SessionError::Fenced))
    }

    async fn make(&self, caller: &Caller, new: NewSession) -> Result<Gotten, SessionError> {
        let shared = &self.shared;
        let session_id = SessionId::random();
        let now_ms = now_ms();
        // Maps of texts always have a form in JSON.
        let environment = serde_json::to_vec(&new.environment).unwrap_or_default();
        let row = Session {
            session_id,
            tenant_id: caller.tenant,
            key_id: caller.key,
            sealed: shared.sealer.seal(&session_id.to_string(), &environment)?,
            network: serde_json::to_string(&new.traffic).unwrap_or_default(),
            limits: serde_json::to_string(&new.limits).unwrap_or_default(),
            agent_id: new.agent_id,
            task_id: new.task_id,
            user_id: new.user_id,
            template: new.template,
            metadata: Metadata(new.metadata),
            sandbox_id: None,
            generation: 0,
            idle_ms: millis(new.idle),
            created_at_ms: now_ms,
            last_used_at_ms: now_ms,
            expires_at_ms: now_ms.saturating_add(millis(new.lifetime)),
            ended_at_ms: None,
            end_reason: None,
        };
        let mut tries = 1..=ATTEMPTS;
        loop {
            let earlier = match self.admit(&row).await? {
                Admission::New(live) => return self.first_use(caller, live).await,
                Admission::Earlier(earlier) => earlier,
            };
            shared.check(caller, &earlier).await?;
            // Whose sandbox may still be on its way.
            let acquired = match self.acquire(caller, earlier.session_id).await {
                // It ended meanwhile, so that there is room for another one.
                Err(SessionError::Ended(_)) if tries.next().is_some() => continue,
                acquired => acquired?,
            };
            return Ok(Gotten {
                session: acquired.session,
                found: Found::Earlier,
                recovered: acquired.recovered,
            });
        }
    }

    /// Stores a session, unless there is one. Whoever is told of it by the
    /// database finds it here, and waits until it is decided.
    async fn admit(&self, row: &Session) -> Result<Admission, SessionError> {
        let shared = &self.shared;
        let live = Arc::new(LiveSession::new(row.clone()));
        let _undecided = live.gate.lock().await;
        lock(&shared.active).insert(row.session_id, Arc::clone(&live));
        let max = shared.settings.per_agent_max;
        let inserting = shared.database.insert_session(&shared.fence, row, max);
        let refused = match inserting.await {
            Ok(Admitted::New) => return Ok(Admission::New(Arc::clone(&live))),
            Ok(Admitted::Earlier(earlier)) => Ok(Admission::Earlier(earlier)),
            Ok(Admitted::TooMany) => Err(SessionError::TooMany(max)),
            Ok(Admitted::Fenced) => Err(SessionError::Fenced),
            Err(error) => Err(error.into()),
        };
        lock(&shared.active).remove(&row.session_id);
        lock(&live.row).end_reason = Some(EndReason::NotMade.as_str().to_owned());
        refused
    }

    /// Gives a new session its sandbox. Without one it ends, unless somebody
    /// else who asked for it was luckier.
    async fn first_use(
        &self,
        caller: &Caller,
        live: Arc<LiveSession>,
    ) -> Result<Gotten, SessionError> {
        let session_id = lock(&live.row).session_id;
        match self.acquire(caller, session_id).await {
            Ok(acquired) => Ok(Gotten {
                session: acquired.session,
                found: Found::New,
                recovered: None,
            }),
            Err(error) => {
                match self.shared.finish(&live, EndReason::NotMade).await {
                    Ok(()) | Err(SessionError::Ended(_)) => {}
                    Err(error) => {
                        tracing::warn!("a session without a sandbox is not ended: {error}");
                    }
                }
                Err(error)
            }
        }
    }
}

/// What became of a session that was asked for.
enum Admission {
    New(Arc<LiveSession>),
    Earlier(Box<Session>),
}

/// How long its sandbox may live: the rest of the session, or as long as any may.
pub(super) fn time_left(row: &Session, lifetime_max: Duration) -> Duration {
    let left_ms = u64::try_from(row.expires_at_ms.saturating_sub(now_ms())).unwrap_or(0);
    Duration::from_millis(left_ms.max(1000)).min(lifetime_max)
}
