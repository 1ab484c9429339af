//! Rows against what runs. The store is the truth, the kernel the witness: at
//! each start and on a timer both are compared, and a difference is repaired.
//!
//! | row | it runs | it does not |
//! |---|---|---|
//! | `running` | taken up again, with its end and its policy | buried, with the recorded reason |
//! | `creating` | undone | buried; its request may be repeated |
//! | `killing` | ended | buried |
//! | `paused` | taken up as it is | buried, with the recorded reason |
//! | `pausing`, `resuming` | taken up, and paused or woken up | buried, with the recorded reason |
//! | none | ended, unless it waits in a pool of this server | |
//!
//! Only sandboxes that live without a client are looked at: those of `atoll
//! run` in the same home end with their command.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{AttachError, Attachment, Outcome, SandboxId, attach_within, running_sandboxes};
use atoll_store::db::{Database, DatabaseError, Sandbox, SandboxState};
use futures_util::StreamExt as _;

use super::ending::{destroy_until_gone, unexplained};
use super::task::{Order, SandboxTask};
use super::{Lifecycle, Registration, SandboxView, Shared};
use crate::LiveSandbox;
use crate::identity::{SandboxSecrets, SealError, now_ms};
use crate::live::blocking;
use crate::running::{CodeAccess, Running};

/// Rows that are taken up at once.
const AT_ONCE: usize = 8;
/// How long the end of one sandbox may take before the others come first.
const END_BOUND: Duration = Duration::from_secs(60);
/// How long a sandbox that should run may take to introduce itself. One whose memory is being
/// written takes longer, and is asked again soon: others are not to wait for it.
const INTRODUCTION_BOUND: Duration = Duration::from_secs(10);
/// Time between two comparisons while the server runs.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);
/// The same while there is a sandbox that was not reached.
const SOON: Duration = Duration::from_secs(5);

/// How long it is known how a sandbox ended, with its log and its metrics.
const TOMBSTONES_KEPT_MS: i64 = 7 * 24 * 60 * 60 * 1000;

/// What a comparison found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Running sandboxes that were taken up.
    pub taken_up: usize,
    /// Rows whose sandbox was gone, half made or half ended.
    pub buried: usize,
    /// Sandboxes that nobody had written down.
    pub reaped: usize,
    /// Sandboxes that should not run and could not be ended.
    pub left: usize,
    /// Sandboxes that should run and could not be taken up yet.
    pub unreached: usize,
}

/// Why rows and sandboxes could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// What runs cannot be found out.
    #[error("cannot tell which sandboxes run")]
    Host(#[from] io::Error),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// What to do with the sandboxes of rows that are in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intention {
    Keep,
    End,
}

/// A sandbox that could not be ended now.
struct Unended;

/// What became of one row.
enum Fate {
    TakenUp,
    Buried,
    /// Another task has it, or nobody can.
    Left,
    /// It should run, and is asked again soon.
    Unreached,
    /// It runs, should not, and cannot be ended now.
    Unended,
}

impl Lifecycle {
    /// Compares rows and sandboxes, and repairs what differs.
    ///
    /// # Errors
    /// When either cannot be read. What cannot be repaired is logged, and
    /// tried again the next time.
    pub async fn reconcile(&self) -> Result<Reconciled, RestartError> {
        self.shared.tell_of_untold_snapshots().await;
        self.shared.reconcile(Intention::Keep).await
    }

    /// Ends every sandbox of this node, also those that no row knows.
    ///
    /// # Errors
    /// When rows or sandboxes cannot be read.
    pub async fn end_all(&self) -> Result<Reconciled, RestartError> {
        self.shared.reconcile(Intention::End).await
    }

    /// Compares once a minute, for ever, and forgets what ended a week ago: a
    /// task of the server.
    pub async fn keep_reconciled(&self) {
        // What a server that was killed left of a snapshot.
        if let Err(error) = self.shared.foundation.catalog.sweep().await {
            tracing::warn!("unfinished layers are not removed: {error}");
        }
        self.shared.sweep_snapshots().await;
        let mut pause = SOON;
        loop {
            tokio::time::sleep(pause).await;
            pause = RECONCILE_INTERVAL;
            let database = &self.shared.foundation.database;
            if let Err(error) = database.forget(now_ms() - TOMBSTONES_KEPT_MS).await {
                tracing::warn!("what ended long ago is not forgotten: {error}");
            }
            self.shared.forget_events().await;
            self.shared.sweep_snapshots().await;
            match self.shared.reconcile(Intention::Keep).await {
                Ok(found) if found == Reconciled::default() => {}
                Ok(found) => {
                    if found.unreached > 0 {
                        pause = SOON;
                    }
                    tracing::warn!("rows and sandboxes differed: {found:?}");
                }
                Err(error) => tracing::warn!("rows and sandboxes were not compared: {error}"),
            }
        }
    }
}

impl Shared {
    async fn reconcile(self: &Arc<Self>, intention: Intention) -> Result<Reconciled, RestartError> {
        let mut found = Reconciled::default();
        // What runs comes first: a row is written before its sandbox is made.
        let running = self.detached().await?;
        let database: &Database = &self.foundation.database;
        let rows = database.sandboxes_of_node(database.node()).await?;
        let strays: Vec<SandboxId> = running
            .into_iter()
            .filter(|id| !rows.iter().any(|row| row.sandbox_id == id.as_str()))
            .collect();
        let fates = futures_util::stream::iter(rows)
            .map(|row| self.settle(row, intention))
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>();
        for fate in fates.await {
            match fate {
                Fate::TakenUp => found.taken_up += 1,
                Fate::Buried => found.buried += 1,
                Fate::Left => {}
                Fate::Unreached => found.unreached += 1,
                Fate::Unended => found.left += 1,
            }
        }
        for stray in strays {
            if self.tasks().contains_key(&stray) {
                continue; // its row was written after rows were read
            }
            match self.end_engine_sandbox(&stray).await {
                Ok(Some(_)) => {
                    tracing::warn!("sandbox {stray} ran and no row knew it: it is ended");
                    found.reaped += 1;
                }
                Ok(None) => {}
                Err(Unended) => found.left += 1,
            }
        }
        Ok(found)
    }

    async fn detached(&self) -> io::Result<Vec<SandboxId>> {
        let home = self.foundation.home.clone();
        let running = blocking(move || running_sandboxes(&home)).await??;
        Ok(running
            .into_iter()
            .filter(|sandbox| sandbox.attachment == Attachment::Detached)
            .map(|sandbox| sandbox.id)
            .collect())
    }

    /// Brings one row and its sandbox together.
    async fn settle(self: &Arc<Self>, row: Sandbox, intention: Intention) -> Fate {
        let Ok(id) = row.sandbox_id.parse::<SandboxId>() else {
            tracing::error!("a row has the impossible name `{}`", row.sandbox_id);
            return Fate::Left;
        };
        let Some((registration, orders)) = Registration::take(self, &id) else {
            return Fate::Left; // its task is at work
        };
        // Read again: its task may have ended it since the rows were read.
        let database = &self.foundation.database;
        let row = match database.sandbox(row.tenant_id, id.as_str()).await {
            Ok(Some(row)) => row,
            Ok(None) => return Fate::Left,
            Err(error) => {
                tracing::error!("sandbox {id} cannot be looked up: {error}");
                return Fate::Unreached;
            }
        };
        let is_in_order = match row.state {
            SandboxState::Running
            | SandboxState::Pausing
            | SandboxState::Paused
            | SandboxState::Resuming => true,
            SandboxState::Creating | SandboxState::Killing => false,
        };
        if is_in_order && intention == Intention::Keep {
            return match self.attach(&id, INTRODUCTION_BOUND).await {
                Ok(sandbox) => match self.take_up(row, sandbox, registration, orders).await {
                    Ok(()) => Fate::TakenUp,
                    Err(error) => {
                        // Asking again does not help.
                        tracing::error!("sandbox {id} cannot be taken up: {error}");
                        Fate::Left
                    }
                },
                Err(AttachError::Gone) => {
                    let outcome = self.recorded_outcome(&id).await;
                    self.close_row(&id, &row, &outcome).await
                }
                Err(error) => {
                    tracing::error!("sandbox {id} cannot be taken up now: {error}");
                    Fate::Unreached
                }
            };
        }
        match row.state {
            SandboxState::Creating => {
                if self.end_engine_sandbox(&id).await.is_err() {
                    return Fate::Unended;
                }
                self.forget_idempotency_key(&row.sandbox_id).await;
                let detail = "the server ended while it was being made".to_owned();
                self.close_row(&id, &row, &Outcome::Crashed { detail })
                    .await
            }
            SandboxState::Running
            | SandboxState::Pausing
            | SandboxState::Paused
            | SandboxState::Resuming
            | SandboxState::Killing => {
                let outcome = match self.end_engine_sandbox(&id).await {
                    Ok(Some(outcome)) => outcome,
                    Ok(None) => self.recorded_outcome(&id).await,
                    Err(Unended) => return Fate::Unended,
                };
                self.close_row(&id, &row, &outcome).await
            }
        }
    }

    /// Lets everybody reach a sandbox again that an earlier server made.
    async fn take_up(
        self: &Arc<Self>,
        row: Sandbox,
        sandbox: Box<dyn atoll_engine::Sandbox>,
        registration: Registration,
        orders: tokio::sync::mpsc::Receiver<Order>,
    ) -> Result<(), TakeUpError> {
        let foundation = &self.foundation;
        let secrets: SandboxSecrets = foundation
            .identity
            .sealer
            .open_sandbox(&row.sandbox_id, &row.sealed)?;
        let view = SandboxView::try_from(row.clone())?;
        let id = sandbox.id().clone();
        let live = LiveSandbox::known(sandbox, secrets.guest_token);
        // What a crash kept from being told is told again: both can be repeated.
        let left = u64::try_from(row.end_at_ms.saturating_sub(now_ms())).unwrap_or(0);
        let time = match row.state {
            SandboxState::Running => view.lifecycle.monitors_time(Duration::from_millis(left)),
            // Its task says when it ends, once it runs.
            _ => Duration::MAX,
        };
        let telling = async {
            live.end_after(time).await?;
            let policy = view.traffic.egress.policy(&foundation.settings.network);
            if let Ok(policy) = policy {
                live.set_network(policy).await?;
            }
            Ok::<_, atoll_engine::SandboxError>(())
        };
        if let Err(error) = telling.await {
            // Its task finds out whether it has ended.
            tracing::warn!("sandbox {id} was not told its end and its policy again: {error}");
        }
        let running = Arc::new(Running {
            id: id.clone(),
            tenant: row.tenant_id,
            live,
            limits: view.limits,
            ingress: view.traffic.ingress.ingress(secrets.traffic_token),
            code_access: CodeAccess::of_client(&row.client, foundation.settings.code_without_token),
        });
        foundation.access.begin_sandbox(id, row.tenant_id);
        if row.state == SandboxState::Running {
            foundation.running.insert(Arc::clone(&running));
        } else {
            // Its task says who may wake it up.
            foundation.running.lay_down(Arc::clone(&running), None);
        }
        self.tell_of_adoption(&row).await;
        let admitted = self.admission.enter_anyway(row.tenant_id);
        let booked = self.booking.take_anyway(&running.limits);
        SandboxTask::start(row, running, orders, (registration, admitted, booked));
        Ok(())
    }

    async fn attach(
        &self,
        id: &SandboxId,
        bound: Duration,
    ) -> Result<Box<dyn atoll_engine::Sandbox>, AttachError> {
        let (home, id) = (self.foundation.home.clone(), id.clone());
        let attached = blocking(move || attach_within(&home, &id, bound)).await;
        attached.unwrap_or_else(|error| Err(AttachError::Host(error)))
    }

    /// Ends `id` if it runs, and says how it ended then.
    async fn end_engine_sandbox(&self, id: &SandboxId) -> Result<Option<Outcome>, Unended> {
        match self.attach(id, END_BOUND).await {
            Ok(sandbox) => {
                let live = LiveSandbox::known(sandbox, String::new());
                let ended = tokio::time::timeout(END_BOUND, destroy_until_gone(&live, None)).await;
                ended.map(|(outcome, _)| Some(outcome)).map_err(|_| {
                    tracing::error!(
                        "sandbox {id} has not ended within {} s; it is tried again",
                        END_BOUND.as_secs()
                    );
                    Unended
                })
            }
            Err(AttachError::Gone) => Ok(None),
            Err(error) => {
                tracing::error!("sandbox {id} cannot be ended now: {error}");
                Err(Unended)
            }
        }
    }

    /// How `id` ended, as the engine wrote it down.
    async fn recorded_outcome(&self, id: &SandboxId) -> Outcome {
        let (home, id) = (self.foundation.home.clone(), id.clone());
        let record = blocking(move || atoll_engine::sandbox_record(&home, &id)).await;
        let record = record.ok().and_then(Result::ok).flatten();
        record
            .and_then(|record| record.ended)
            .map_or_else(unexplained, |ended| ended.outcome)
    }

    async fn close_row(&self, id: &SandboxId, row: &Sandbox, outcome: &Outcome) -> Fate {
        self.foundation.running.remove(id);
        self.foundation.access.end_sandbox(id);
        self.note(id, &format!("sandbox ended: {outcome}")).await;
        self.bury(row, outcome).await;
        Fate::Buried
    }
}

/// Why a running sandbox cannot be taken up.
#[derive(Debug, thiserror::Error)]
enum TakeUpError {
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}
