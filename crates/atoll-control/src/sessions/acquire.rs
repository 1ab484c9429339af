//! The sandbox of a session: the one it has, or a new one where that is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_engine::Outcome;
use atoll_store::db::{SandboxState, Session, SessionId, SessionUse};
use tokio::time::sleep;

use super::create::time_left;
use super::{EndReason, LiveSession, SESSION_MARK, SessionError, Sessions, Shared, lock};
use crate::executions::{Attempt, Attempts, Place};
use crate::identity::{Caller, now_ms};
use crate::lifecycle::{CreateError, CreateWish, Created, OperationError, PauseMode, Traffic};
use crate::running::Running;
use crate::templates::Resources;

/// How long a sandbox may be found neither running nor ended nor paused.
const BETWEEN_BOUND: Duration = Duration::from_secs(10);
/// Pause between two looks at it.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// What is said of a sandbox that is there and that the server does not have.
const UNREACHED: &str = "the server cannot reach it at the moment";
/// What a sandbox takes with it.
const LOST: [&str; 3] = ["variables", "files", "processes"];
/// What one loses that boots again.
const LOST_BY_BOOT: [&str; 2] = ["variables", "processes"];

/// The sandbox of a session, ready for work.
pub struct Acquired {
    /// The session as it is now.
    pub session: Session,
    /// Its sandbox.
    pub place: Place,
    /// What happened to the one it had.
    pub recovered: Option<Recovered>,
}

/// A session whose sandbox was gone, and that has another one now; or the same
/// one, booted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// How the one before ended.
    pub reason: String,
    /// The one before.
    pub previous_sandbox_id: String,
    /// What was in it.
    pub lost: Vec<String>,
    /// Attempts to make another one that failed.
    pub attempts: Vec<Attempt>,
}

/// What became of a sandbox that should take commands.
enum Woken {
    /// It does, with everything in it.
    Whole,
    /// It does, and has booted on its files.
    Booted,
    /// It does not, and never will.
    Gone,
}

impl Recovered {
    /// The same sandbox, without what was in its memory.
    fn booted(sandbox: &str) -> Self {
        Self {
            reason: "it was paused without its memory, and has booted again".to_owned(),
            previous_sandbox_id: sandbox.to_owned(),
            lost: LOST_BY_BOOT.map(str::to_owned).to_vec(),
            attempts: Vec::new(),
        }
    }
}

impl Sessions {
    /// The sandbox of a session that `caller` may use. When it is gone there
    /// is a new one, and what that means is told.
    ///
    /// # Errors
    /// When the session cannot be used, or no sandbox can be made for it.
    pub async fn acquire(&self, caller: &Caller, id: SessionId) -> Result<Acquired, SessionError> {
        let live = self.shared.usable(caller, id).await?;
        live.touch();
        let row = live.row();
        if row.expires_at_ms <= now_ms() {
            // At once, and not when it is looked at next: its task may go on in another.
            self.finish(live, EndReason::Expired).await?;
            return Err(SessionError::Ended(EndReason::Expired.as_str().to_owned()));
        }
        if let Some(place) = self.shared.present(&live, &row) {
            return Ok(Acquired {
                session: row,
                place,
                recovered: lock(&live.untold).clone(),
            });
        }
        // In a task of its own: who hangs up half-way leaves nothing half made.
        let (shared, caller) = (Arc::clone(&self.shared), caller.clone());
        let renewed = tokio::spawn(async move { shared.renewed(&caller, &live, &row).await });
        renewed.await.unwrap_or(Err(SessionError::Fenced))
    }
}

impl Shared {
    /// Its sandbox, if that takes commands.
    fn present(&self, live: &LiveSession, row: &Session) -> Option<Place> {
        let sandbox = self.places.running().get(row.sandbox_id.as_deref()?)?;
        let template_id = lock(&live.template_id).clone();
        Some(place(sandbox, template_id, row))
    }

    /// Wakes up its sandbox, or makes another one. `seen` is what the caller
    /// knew: a session that somebody else renewed since is renewed for it too.
    async fn renewed(
        &self,
        caller: &Caller,
        live: &LiveSession,
        seen: &Session,
    ) -> Result<Acquired, SessionError> {
        let _gate = live.gate.lock().await;
        let row = live.row();
        if let Some(reason) = row.end_reason {
            return Err(SessionError::Ended(reason));
        }
        let caller = caller
            .clone()
            .on_behalf_of(Some(row.agent_id.clone()), row.task_id.clone());
        let previous = match &row.sandbox_id {
            None => None,
            Some(sandbox) => {
                let woken = match self.present(live, &row) {
                    Some(_) => Woken::Whole,
                    None => self.wake(&caller, sandbox, &row).await?,
                };
                match (woken, self.present(live, &row)) {
                    (woken, Some(place)) => {
                        let recovered = match (&seen.sandbox_id, woken) {
                            (Some(before), _) if before != sandbox => {
                                Some(self.loss(&caller, before).await?)
                            }
                            (_, Woken::Booted) => Some(Recovered::booted(sandbox)),
                            (_, Woken::Whole | Woken::Gone) => lock(&live.untold).clone(),
                        };
                        lock(&live.untold).clone_from(&recovered);
                        return Ok(Acquired {
                            session: row,
                            place,
                            recovered,
                        });
                    }
                    (Woken::Gone, None) => Some(self.loss(&caller, sandbox).await?),
                    // What is there is not given up.
                    (Woken::Whole | Woken::Booted, None) => {
                        let message = "somebody has paused or ended it again".to_owned();
                        return Err(SessionError::Asleep(message));
                    }
                }
            }
        };
        let (created, attempts) = self.make_sandbox(&caller, &row).await?;
        let sandbox_row = created.view.row;
        let sandbox_id = sandbox_row.sandbox_id;
        *lock(&live.template_id) = Some(sandbox_row.template_id);
        let generation = row.generation + 1;
        {
            let mut row = lock(&live.row);
            row.sandbox_id = Some(sandbox_id.clone());
            row.generation = generation;
        }
        let now = SessionUse {
            sandbox_id: Some(&sandbox_id),
            generation,
            last_used_at_ms: now_ms(),
        };
        let noted = self
            .database
            .note_session_use(&self.fence, row.session_id, now);
        if !noted.await? {
            return Err(SessionError::Fenced);
        }
        let recovered = previous.map(|loss| Recovered {
            attempts: attempts.clone(),
            ..loss
        });
        lock(&live.untold).clone_from(&recovered);
        let row = live.row();
        let place = self.present(live, &row);
        let place = place.ok_or_else(|| SessionError::Unavailable {
            message: "its new sandbox ended at once".to_owned(),
            attempts,
        })?;
        Ok(Acquired {
            session: row,
            place,
            recovered,
        })
    }

    /// Lets its sandbox run on if that is paused. What cannot be woken up now
    /// is not gone, and neither are its files.
    async fn wake(
        &self,
        caller: &Caller,
        sandbox: &str,
        row: &Session,
    ) -> Result<Woken, SessionError> {
        let between_until = Instant::now() + BETWEEN_BOUND;
        let found = loop {
            let found = self.database.sandbox(caller.tenant, sandbox).await?;
            let Some(found) = found else {
                return Ok(Woken::Gone);
            };
            match found.state {
                SandboxState::Paused | SandboxState::Pausing | SandboxState::Resuming => {
                    break found;
                }
                // It may have held still for a moment.
                SandboxState::Running if self.places.running().reached(sandbox).await.is_some() => {
                    return Ok(Woken::Whole);
                }
                SandboxState::Creating | SandboxState::Killing => return Ok(Woken::Gone),
                // On its way to its end or to a pause, or not taken up yet by a server that
                // was started again: that is written down in a moment.
                SandboxState::Running if Instant::now() < between_until => {
                    sleep(LOOK_PAUSE).await;
                }
                SandboxState::Running => {
                    return Err(SessionError::Asleep(UNREACHED.to_owned()));
                }
            }
        };
        let lifecycle = self.places.lifecycle();
        let time = time_left(row, lifecycle.settings().lifetime_max);
        match lifecycle.connect(caller, sandbox, time).await {
            Ok(_) => Ok(match PauseMode::of(&found) {
                PauseMode::Full => Woken::Whole,
                PauseMode::Filesystem => Woken::Booted,
            }),
            Err(OperationError::NotFound) => {
                // Nobody has it who could wake it up, which is not yet its end.
                match self.database.sandbox(caller.tenant, sandbox).await? {
                    None => Ok(Woken::Gone),
                    Some(found) if found.state == SandboxState::Killing => Ok(Woken::Gone),
                    Some(_) => Err(SessionError::Asleep(UNREACHED.to_owned())),
                }
            }
            Err(error) => Err(SessionError::Asleep(error.to_string())),
        }
    }

    /// What became of a sandbox that is gone.
    async fn loss(&self, caller: &Caller, sandbox: &str) -> Result<Recovered, SessionError> {
        let tombstone = self.database.tombstone(caller.tenant, sandbox).await?;
        let reason = tombstone.and_then(|tombstone| {
            let outcome: Outcome = serde_json::from_str(&tombstone.outcome).ok()?;
            Some(outcome.to_string())
        });
        Ok(Recovered {
            reason: reason.unwrap_or_else(|| "it does not answer any more".to_owned()),
            previous_sandbox_id: sandbox.to_owned(),
            lost: LOST.map(str::to_owned).to_vec(),
            attempts: Vec::new(),
        })
    }

    /// A sandbox as the session wants it. Making one is safe to try again:
    /// nothing has run in it.
    async fn make_sandbox(
        &self,
        caller: &Caller,
        row: &Session,
    ) -> Result<(Created, Vec<Attempt>), SessionError> {
        let lifecycle = self.places.lifecycle();
        let sealed = self.sealer.open(&row.session_id.to_string(), &row.sealed)?;
        let environment: BTreeMap<String, String> =
            serde_json::from_slice(&sealed).unwrap_or_default();
        let limits: Resources = serde_json::from_str(&row.limits).unwrap_or_default();
        let traffic: Traffic = serde_json::from_str(&row.network).unwrap_or_default();
        let mut metadata = row.metadata.0.clone();
        metadata.insert(SESSION_MARK.to_owned(), row.session_id.to_string());
        let mut attempts = Attempts::default();
        loop {
            let wish = CreateWish {
                template: row.template.clone(),
                timeout: time_left(row, lifecycle.settings().lifetime_max),
                metadata: metadata.clone(),
                environment: environment.clone(),
                limits: limits.clone(),
                traffic: traffic.clone(),
                pauses: false,
                pause_mode: PauseMode::Full,
                auto_resumes: false,
                client: "atoll session".to_owned(),
            };
            match lifecycle.create(caller, wish, None).await {
                Ok(created) => return Ok((created, attempts.failed())),
                Err(
                    error @ (CreateError::Open(_) | CreateError::Lost(_) | CreateError::Host(_)),
                ) => {
                    let message = error.to_string();
                    if !attempts.again_after(message.clone()).await {
                        return Err(SessionError::Unavailable {
                            message,
                            attempts: attempts.failed(),
                        });
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn place(sandbox: Arc<Running>, template_id: Option<String>, row: &Session) -> Place {
    Place {
        sandbox,
        template_id: template_id.unwrap_or_else(|| row.template.clone()),
        task_id: row.task_id.clone(),
        session: Some(row.session_id),
    }
}
