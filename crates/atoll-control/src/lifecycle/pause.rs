//! Holding still, and running on.
//!
//! A paused sandbox keeps its place; nobody reaches it, its time stands still, and its
//! tokens open it again when it is back. Its monitor keeps it, with or without a server.
//!
//! With [`PauseMode::Full`] its processes keep their memory: frozen, or, under gVisor, on
//! disk. With [`PauseMode::Filesystem`] they end, and it boots again on its files.

use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{SandboxError, SandboxId, Tier};
use atoll_guest_client::InitRequest;
use atoll_store::db::{Change, Intent, Sandbox, SandboxState};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::create::millis;
use super::meter::{Between, last_look};
use super::sampler::Sampler;
use super::task::{Order, SandboxTask};
use super::{Found, Lifecycle, OperationError, Shared, Step, event};
use crate::LiveSandbox;
use crate::identity::{Caller, SandboxSecrets, now_ms};
use crate::running::{Running, Wake};

/// How long a guest may take to show that it is well.
const HEALTH_BOUND: Duration = Duration::from_secs(5);

/// How long a guest may take to answer once its memory is back.
const RESTORE_BOUND: Duration = Duration::from_secs(10);

/// How long traffic waits for a sandbox that it wakes up.
const WAKE_BOUND: Duration = Duration::from_secs(30);

/// What has to be so for a sandbox to be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseCondition {
    /// Nothing.
    None,
    /// Its guest answers.
    HealthyGuest,
}

/// What is kept of a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Everything: it goes on where it was.
    #[default]
    Full,
    /// Its files: it boots again.
    Filesystem,
}

/// What there is of a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Everything, in memory.
    Processes,
    /// Everything, on disk: its memory is free.
    MemoryOnDisk,
    /// Its files.
    Files,
}

impl PauseMode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Filesystem => "filesystem",
        }
    }

    /// How the sandbox of `row` was paused last.
    #[must_use]
    pub fn of(row: &Sandbox) -> Self {
        match row.pause_mode.as_deref() {
            Some(text) if text == Self::Filesystem.as_str() => Self::Filesystem,
            _ => Self::Full,
        }
    }
}

impl Lifecycle {
    /// Lets a sandbox of `caller` hold still. When this returns, nobody
    /// reaches it any more.
    ///
    /// # Errors
    /// When there is none, it is paused already, or it cannot be now; then it
    /// runs on.
    pub async fn pause(
        &self,
        caller: &Caller,
        id: &str,
        mode: PauseMode,
        condition: PauseCondition,
    ) -> Result<(), OperationError> {
        let (id, _) = self.shared.row(caller, id).await?;
        let (reply, answer) = oneshot::channel();
        let order = Order::Pause {
            mode,
            condition,
            reply,
        };
        self.shared.order(&id, order).await?;
        answer.await.unwrap_or(Err(OperationError::NotFound))
    }
}

impl Shared {
    /// Wakes up the sandbox `id` and lets it live for `time` from then on; one
    /// that runs lives for at least as long.
    pub(super) async fn resume(
        &self,
        id: &SandboxId,
        time: Duration,
    ) -> Result<(Sandbox, Found), OperationError> {
        let (reply, answer) = oneshot::channel();
        self.order(id, Order::Resume { time, reply }).await?;
        answer.await.unwrap_or(Err(OperationError::NotFound))
    }
}

impl SandboxTask {
    /// Pauses it, if it runs.
    pub(super) async fn pause(
        &mut self,
        mode: PauseMode,
        condition: PauseCondition,
    ) -> Result<(), OperationError> {
        if self.row.state == SandboxState::Paused {
            return Err(OperationError::Paused);
        }
        let tier = self.running.live.sandbox().tier();
        if mode == PauseMode::Filesystem && tier != Tier::Container {
            return Err(OperationError::FilesOnly(tier));
        }
        if condition == PauseCondition::HealthyGuest {
            let well = self.running.live.guest().wait_ready(HEALTH_BOUND).await;
            well.map_err(|_| OperationError::GuestUnresponsive)?;
        }
        let pausing = Change {
            state: Some(SandboxState::Pausing),
            intent: Some(Some(Intent::Pause)),
            pause_mode: Some(mode.as_str().to_owned()),
            ..Change::default()
        };
        self.row = Step::WritePausing.around(self.change(&pausing)).await?;
        self.lie_down().await
    }

    /// Is found by those who may wake it up.
    pub(super) fn stay_down(&self) {
        let running = &self.shared.foundation.running;
        running.lay_down(Arc::clone(&self.running), self.wake());
    }

    /// From `Pausing` to `Paused`, or back to `Running`.
    pub(super) async fn lie_down(&mut self) -> Result<(), OperationError> {
        // Nobody new, and nobody who waits for an answer that cannot come.
        self.stay_down();
        self.shared.foundation.access.break_off(&self.running.id);
        self.sampler = None;
        let last = last_look(&self.running).await;
        self.shared
            .meter_last(&self.running, last, Between::Ran)
            .await;
        let kept = self.kept();
        let live = &self.running.live;
        let stopping = async {
            live.end_after(Duration::MAX).await?;
            match kept {
                Kept::Processes => live.freeze().await,
                Kept::MemoryOnDisk => live.checkpoint().await,
                Kept::Files => live.suspend().await,
            }
        };
        let stopped = Step::Freeze.around(stopping).await;
        // What tells of its end may be another process now.
        self.is_another_life = true;
        if let Err(error) = stopped {
            // It is a sandbox that runs, until its time is over.
            let left = self.row.end_at_ms.saturating_sub(now_ms());
            self.stand_up(left.max(0), self.row.started_at_ms).await?;
            return Err(error.into());
        }
        let paused = Change {
            state: Some(SandboxState::Paused),
            intent: Some(None),
            end_at_ms: Some(now_ms()),
            events: event::of_pause(&self.row),
            ..Change::default()
        };
        self.row = Step::WritePaused.around(self.change(&paused)).await?;
        self.shared.note(&self.running.id, "sandbox paused").await;
        Ok(())
    }

    /// Wakes it up, if it is paused.
    pub(super) async fn resume(
        &mut self,
        time: Duration,
    ) -> Result<(Sandbox, Found), OperationError> {
        let end_at_ms = now_ms().saturating_add(millis(time));
        if self.row.state == SandboxState::Running {
            let row = self
                .set_end(super::task::NewEnd::NotBefore(end_at_ms))
                .await?;
            return Ok((row, Found::Running));
        }
        if let Err(full) = self.places.2.take_back() {
            // For who asks again.
            self.shared.pools.make_room(&self.running.limits);
            return Err(full.into());
        }
        let resuming = Change {
            state: Some(SandboxState::Resuming),
            intent: Some(Some(Intent::Resume)),
            end_at_ms: Some(end_at_ms),
            ..Change::default()
        };
        self.row = Step::WriteResuming.around(self.change(&resuming)).await?;
        if let Err(error) = self.stand_up(millis(time), now_ms()).await {
            match self.hold_again().await {
                Ok(()) => self.stay_paused().await?,
                // Then its row goes on saying that it is woken up, and that is tried again.
                Err(left) => tracing::warn!("sandbox {} is half awake: {left}", self.running.id),
            }
            return Err(error);
        }
        self.shared.note(&self.running.id, "sandbox resumed").await;
        Ok((self.row.clone(), Found::Paused))
    }

    /// Holds what may run by now still, as it was before.
    async fn hold_again(&mut self) -> Result<(), OperationError> {
        self.stay_down();
        self.is_another_life = true;
        let live = &self.running.live;
        live.end_after(Duration::MAX).await?;
        match self.kept() {
            Kept::Processes => live.freeze().await?,
            Kept::MemoryOnDisk | Kept::Files => live.suspend().await?,
        }
        Ok(())
    }

    /// From `Resuming` back to `Paused`: what was kept of it is there as before.
    async fn stay_paused(&mut self) -> Result<(), OperationError> {
        let paused = Change {
            state: Some(SandboxState::Paused),
            intent: Some(None),
            end_at_ms: Some(now_ms()),
            ..Change::default()
        };
        self.row = self.change(&paused).await?;
        Ok(())
    }

    /// Lets it run on, for `left_ms`, as one that began at `started_at_ms`.
    pub(super) async fn stand_up(
        &mut self,
        left_ms: i64,
        started_at_ms: i64,
    ) -> Result<(), OperationError> {
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        let time = self.at_end.monitors_time(left);
        let started = Step::Thaw.around(self.start_again(time)).await;
        self.is_another_life = true;
        started?;
        // Before the row says so: who reads it there can reach it.
        let foundation = &self.shared.foundation;
        foundation.running.insert(Arc::clone(&self.running));
        let resumed = Change {
            state: Some(SandboxState::Running),
            intent: Some(None),
            started_at_ms: Some(started_at_ms),
            end_at_ms: Some(now_ms().saturating_add(left_ms)),
            events: event::of_waking(&self.row),
            ..Change::default()
        };
        self.row = Step::WriteResumed.around(self.change(&resumed)).await?;
        if self.kept() == Kept::MemoryOnDisk
            && let Err(error) = self.running.live.settle().await
        {
            // It goes with the sandbox, or when the next one is written.
            tracing::warn!("memory of {} stays on disk: {error}", self.running.id);
        }
        self.sampler = Some(Sampler::start(
            &self.shared,
            &self.running,
            Between::WasPaused,
        ));
        Ok(())
    }

    /// Lets its processes run on, or others in their place, for `time`.
    async fn start_again(&mut self, time: Duration) -> Result<(), OperationError> {
        let live = &self.running.live;
        match self.kept() {
            Kept::Processes => {
                live.thaw().await?;
                live.end_after(time).await?;
            }
            Kept::MemoryOnDisk => {
                live.wake().await?;
                // One that an earlier release paused is frozen.
                live.thaw().await?;
                if let Err(error) = live.guest().wait_ready(RESTORE_BOUND).await {
                    // It goes on from there another time, if there is another time.
                    live.suspend().await?;
                    return Err(OperationError::Failed(format!(
                        "its guest does not go on: {error}"
                    )));
                }
                live.end_after(time).await?;
                // Whoever kept connections to it knows it by this.
                self.running = Arc::new(Running::clone(&self.running));
            }
            Kept::Files => {
                live.wake().await?;
                if let Err(error) = swear_in(&self.shared, &self.row, live).await {
                    // It boots again another time; its files are the same.
                    live.suspend().await?;
                    return Err(error);
                }
                live.end_after(time).await?;
                // Whoever kept connections to it knows it by this.
                self.running = Arc::new(Running::clone(&self.running));
            }
        }
        Ok(())
    }

    /// What is kept of it while it is paused.
    pub(super) fn kept(&self) -> Kept {
        match (PauseMode::of(&self.row), self.running.live.sandbox().tier()) {
            (PauseMode::Full, Tier::Container | Tier::Microvm) => Kept::Processes,
            (PauseMode::Full, Tier::Gvisor) => Kept::MemoryOnDisk,
            (PauseMode::Filesystem, _) => Kept::Files,
        }
    }

    /// What traffic does to it while it is paused.
    fn wake(&self) -> Option<Wake> {
        // One that boots again is not what traffic was meant for.
        if !self.at_end.auto_resumes || PauseMode::of(&self.row) == PauseMode::Filesystem {
            return None;
        }
        // The table of sandboxes is part of what it would hold.
        let shared = Arc::downgrade(&self.shared);
        let id = self.running.id.clone();
        let time = Duration::from_millis(u64::try_from(self.at_end.woken_for_ms).unwrap_or(0))
            .min(self.shared.foundation.settings.lifetime_max);
        Some(Arc::new(move || {
            let (shared, id) = (shared.upgrade(), id.clone());
            Box::pin(async move {
                let Some(shared) = shared else { return false };
                let resumed = timeout(WAKE_BOUND, shared.resume(&id, time)).await;
                match resumed {
                    Ok(Ok(_)) => true,
                    Ok(Err(error)) => {
                        tracing::warn!("sandbox {id} is not woken up by traffic: {error}");
                        false
                    }
                    Err(_) => false,
                }
            })
        }))
    }
}

/// Tells the guest of a sandbox that has booted again what it was told at first. Who was
/// told before is told the same.
async fn swear_in(
    shared: &Shared,
    row: &Sandbox,
    live: &LiveSandbox,
) -> Result<(), OperationError> {
    let failed = |error: &dyn std::fmt::Display| OperationError::Failed(error.to_string());
    let sealer = &shared.foundation.identity.sealer;
    let secrets: SandboxSecrets = sealer
        .open_sandbox(&row.sandbox_id, &row.sealed)
        .map_err(|error| failed(&error))?;
    let init = InitRequest {
        access_token: Some(secrets.guest_token),
        ..secrets.init
    };
    live.swear_in(&init).await.map_err(|error| {
        failed(&SandboxError::Failed(format!(
            "its guest does not come up again: {error}"
        )))
    })?;
    live.warm().await;
    Ok(())
}
