//! Sessions: an agent's way to a sandbox that may be another one tomorrow.
//!
//! ```text
//! get_or_create ─▶ row ─▶ sandbox ◀─ acquire ── every call of the agent
//!                             │           └─ gone? a new one, and what was lost
//!      idle · expired · task completed · ended by its agent
//!                             ▼
//!                     row ended ─▶ sandbox ended
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `wish.rs`, `error.rs` | what is asked for, and why it cannot be |
//! | `open.rs` | sessions after a start of the server |
//! | `create.rs` | a new one, or the one that is there |
//! | `acquire.rs` | its sandbox, made anew where it is gone |
//! | `run.rs` | something to run in it |
//! | `end.rs` | the end of sessions and tasks, asked for or due |
//! | `grants.rs` | which other agents may use it |
//!
//! **Invariant**: a session has at most one sandbox. Who makes or ends one
//! holds the session's gate. **Invariant**: the end of a session is written
//! before its sandbox ends; a sandbox without its session ends at the next start.

mod acquire;
mod create;
mod end;
mod error;
mod grants;
mod open;
mod run;
mod wish;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_store::db::{Database, Fence, GrantedObject, Session, SessionId};

use crate::executions::{Places, may_use};
use crate::identity::{Caller, Sealer, now_ms};

pub use acquire::{Acquired, Recovered};
pub use create::{Found, Gotten};
pub use end::{Completed, EndReason};
pub use error::SessionError;
pub use run::RunError;
pub use wish::NewSession;

/// Written on every sandbox of a session, for its owner to see and for the
/// next start of the server.
pub const SESSION_MARK: &str = "atoll_session_id";

/// Bounds and defaults of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionSettings {
    /// Sessions that one agent has at once, at most.
    pub per_agent_max: usize,
    /// How long nobody may use one before it ends, when nothing is said.
    pub idle: Duration,
    /// How long one lives, when nothing is said.
    pub lifetime: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            per_agent_max: 10,
            idle: Duration::from_secs(60 * 60),
            lifetime: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// All sessions of this node. Clones are the same.
#[derive(Clone)]
pub struct Sessions {
    shared: Arc<Shared>,
}

struct Shared {
    places: Places,
    database: Database,
    fence: Fence,
    sealer: Sealer,
    settings: SessionSettings,
    active: Mutex<HashMap<SessionId, Arc<LiveSession>>>,
}

/// A session that can be used.
struct LiveSession {
    row: Mutex<Session>,
    /// What its sandbox was made from.
    template_id: Mutex<Option<String>>,
    last_used_ms: AtomicI64,
    /// What was lost and nobody has been told yet: who asked may have hung up,
    /// or its call may have failed.
    untold: Mutex<Option<Recovered>>,
    /// Held by who makes or ends its sandbox.
    gate: tokio::sync::Mutex<()>,
}

impl LiveSession {
    fn new(row: Session) -> Self {
        Self {
            last_used_ms: AtomicI64::new(row.last_used_at_ms),
            row: Mutex::new(row),
            template_id: Mutex::default(),
            untold: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
        }
    }

    /// As it stands now.
    fn row(&self) -> Session {
        Session {
            last_used_at_ms: self.last_used_ms.load(Ordering::Relaxed),
            ..lock(&self.row).clone()
        }
    }

    fn touch(&self) {
        self.last_used_ms.fetch_max(now_ms(), Ordering::Relaxed);
    }
}

impl Sessions {
    /// Bounds and defaults.
    #[must_use]
    pub fn settings(&self) -> SessionSettings {
        self.shared.settings
    }

    /// A session that `caller` may use, also one that ended.
    ///
    /// # Errors
    /// When there is none.
    pub async fn get(&self, caller: &Caller, id: SessionId) -> Result<Session, SessionError> {
        let row = match self.shared.live(id) {
            Some(live) => live.row(),
            None => self
                .shared
                .database
                .session(caller.tenant, id)
                .await?
                .ok_or(SessionError::NotFound)?,
        };
        self.shared.check(caller, &row).await?;
        Ok(row)
    }
}

impl Sessions {
    /// Says that a caller knows of `recovered`: later ones need not be told.
    pub fn told(&self, id: SessionId, recovered: Option<&Recovered>) {
        if let (Some(live), Some(recovered)) = (self.shared.live(id), recovered) {
            let mut untold = lock(&live.untold);
            if untold.as_ref() == Some(recovered) {
                *untold = None;
            }
        }
    }
}

impl Shared {
    fn live(&self, id: SessionId) -> Option<Arc<LiveSession>> {
        lock(&self.active).get(&id).cloned()
    }

    /// Whether `caller` may use it.
    async fn check(&self, caller: &Caller, row: &Session) -> Result<(), SessionError> {
        if row.tenant_id != caller.tenant {
            return Err(SessionError::NotFound);
        }
        let id = row.session_id.to_string();
        let object = GrantedObject::Session(&id);
        if may_use(&self.database, caller, Some(&row.agent_id), object).await? {
            Ok(())
        } else {
            Err(SessionError::OtherAgent)
        }
    }

    /// A session that can be used, and that `caller` may use.
    async fn usable(
        &self,
        caller: &Caller,
        id: SessionId,
    ) -> Result<Arc<LiveSession>, SessionError> {
        if let Some(live) = self.live(id) {
            self.check(caller, &live.row()).await?;
            return Ok(live);
        }
        let ended = self.database.session(caller.tenant, id).await?;
        let ended = ended.ok_or(SessionError::NotFound)?;
        self.check(caller, &ended).await?;
        Err(SessionError::Ended(ended.end_reason.unwrap_or_default()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
