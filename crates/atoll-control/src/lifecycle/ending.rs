//! The last steps of a sandbox: out of reach, its tokens over, its processes
//! ended, its tombstone set.

use std::time::Duration;

use atoll_engine::{Outcome, SandboxError};
use atoll_store::db::{Change, ChangeError, Intent, Sandbox, SandboxState};

use super::meter::{Between, last_look};
use super::task::{Reply, SandboxTask};
use super::view::json;
use super::{OperationError, Shared, Step, event};
use crate::LiveSandbox;
use crate::identity::now_ms;

/// How long the monitor may take to end a sandbox whose time is over.
const EXPIRY_BOUND: Duration = Duration::from_secs(5);
/// How long the end of a sandbox may take to be on record.
const RECORD_BOUND: Duration = Duration::from_secs(5);
/// Pause before something that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Why a sandbox ends.
pub(super) enum Ending {
    /// Somebody asked for it.
    Asked(Reply<()>),
    /// Its time is over; its monitor knows that too.
    TimeOver,
    /// It has ended.
    Found,
}

impl SandboxTask {
    /// Ends the sandbox, and with it this task. `between` is what it did since it was
    /// measured last.
    pub(super) async fn end(mut self, ending: Ending, between: Between) {
        self.close();
        let last = last_look(&self.running).await;
        if self.row.state != SandboxState::Killing {
            // It ends anyway, whether or not that can be written now.
            match self.write_killing().await {
                Ok(()) => {}
                Err(OperationError::Fenced) => {
                    let id = &self.running.id;
                    tracing::error!("sandbox {id} is left to the server that is in charge now");
                    return;
                }
                Err(error) => {
                    let id = &self.running.id;
                    tracing::warn!("the end of {id} is not written yet: {error}");
                }
            }
        }
        let live = &self.running.live;
        let is_over = matches!(ending, Ending::TimeOver);
        let ended = async {
            match ending {
                Ending::Asked(reply) => {
                    let destroying = destroy_until_gone(live, Some(reply));
                    Step::Destroy.around(destroying).await
                }
                Ending::TimeOver | Ending::Found => {
                    let seen = live.wait(EXPIRY_BOUND).await.ok().flatten();
                    let destroying = destroy_until_gone(live, None);
                    let (destroyed, _) = Step::Destroy.around(destroying).await;
                    (seen.unwrap_or(destroyed), None)
                }
            }
        };
        let metered = self.shared.meter_last(&self.running, last, between);
        let ((outcome, reply), ()) = tokio::join!(ended, metered);
        let outcome = match outcome {
            // Its monitor was told to end it, because its time was over.
            Outcome::Killed if is_over => self.lifetime_ended(),
            other => other,
        };
        self.shared
            .note(&self.running.id, &format!("sandbox ended: {outcome}"))
            .await;
        self.shared.bury(&self.row, &outcome).await;
        if let Some(reply) = reply {
            let _ = reply.send(Ok(())); // who does not wait needs no answer
        }
    }

    fn lifetime_ended(&self) -> Outcome {
        let lived = self.row.end_at_ms.saturating_sub(self.row.started_at_ms);
        Outcome::LifetimeEnded {
            limit_ms: u64::try_from(lived).unwrap_or(0),
        }
    }

    /// Stores that it is about to be ended.
    pub(super) async fn write_killing(&mut self) -> Result<(), OperationError> {
        let change = Change {
            state: Some(SandboxState::Killing),
            intent: Some(Some(Intent::Kill)),
            ..Change::default()
        };
        self.row = Step::WriteKilling.around(self.change(&change)).await?;
        Ok(())
    }

    /// Lets nobody new in, and sends away who is there.
    fn close(&self) {
        let foundation = &self.shared.foundation;
        foundation.running.remove(&self.running.id);
        foundation.access.end_sandbox(&self.running.id);
    }
}

/// Ends `live` and removes all of it, however often that takes. `reply` is
/// told when it does not work at once, and comes back when it does.
pub(super) async fn destroy_until_gone(
    live: &LiveSandbox,
    mut reply: Option<Reply<()>>,
) -> (Outcome, Option<Reply<()>>) {
    loop {
        match live.destroy().await {
            Ok(outcome) => return (outcome, reply),
            Err(SandboxError::Gone) => {
                let recorded = live.wait(RECORD_BOUND).await.ok().flatten();
                return (recorded.unwrap_or_else(unexplained), reply);
            }
            Err(error) => {
                let id = live.sandbox().id();
                tracing::error!("sandbox {id} cannot be removed, and is tried again: {error}");
                if let Some(reply) = reply.take() {
                    let _ = reply.send(Err(error.into()));
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// The end of a sandbox that left no record.
pub(super) fn unexplained() -> Outcome {
    Outcome::Crashed {
        detail: "it was gone, and nothing says why".to_owned(),
    }
}

impl Shared {
    /// Sets the tombstone of `row`, for as long as it takes.
    pub(super) async fn bury(&self, row: &Sandbox, outcome: &Outcome) {
        let events = event::of_end(row, outcome);
        let (foundation, outcome) = (&self.foundation, json(outcome));
        loop {
            let burying = foundation.database.bury_sandbox(
                &foundation.fence,
                &row.sandbox_id,
                row.expected(),
                now_ms(),
                &outcome,
                &events,
            );
            match Step::Bury.around(burying).await {
                Ok(_) => return,
                Err(ChangeError::Lost(lost)) => {
                    tracing::error!("sandbox {} was not ours to bury: {lost}", row.sandbox_id);
                    return;
                }
                Err(ChangeError::Database(error)) => {
                    tracing::error!("the end of {} cannot be written: {error}", row.sandbox_id);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Lets the request that made `sandbox` be repeated.
    pub(super) async fn forget_idempotency_key(&self, sandbox: &str) {
        let forgetting = self.foundation.database.forget_idempotency_key_of(sandbox);
        if let Err(error) = forgetting.await {
            tracing::warn!("an idempotency key stays although its sandbox was undone: {error}");
        }
    }
}
