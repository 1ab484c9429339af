//! The task of one running sandbox: the only writer of its state.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{Memory, NetworkPolicy};
use atoll_store::db::{Change, Sandbox, SandboxState};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::admission::Admitted;
use super::booking::{Booked, Hold};
use super::deadline::Deadline;
use super::ending::Ending;
use super::meter::Between;
use super::pause::Kept;
use super::sampler::Sampler;
use super::snapshot::{Held, Holder, released};
use super::view::{json, parse};
use super::{
    Found, LifecycleView, OperationError, PauseCondition, PauseMode, Registration, Shared, Step,
    Traffic,
};
use crate::identity::now_ms;
use crate::running::Running;

/// Orders that wait while one is carried out; who comes later waits outside.
pub(super) const ORDERS_WAITING: usize = 32;

/// Pause before a sandbox that could not be paused at its end is paused again.
const PAUSE_RETRY: Duration = Duration::from_secs(15);
/// How often the time until a pause at its end is tried again doubles: each try sends
/// everybody away who is there.
const PAUSE_DOUBLINGS: u32 = 6;

/// Pause before a sandbox that could not be watched is watched again.
const WATCH_PAUSE: Duration = Duration::from_secs(5);

/// Where an order says what came of it.
pub(super) type Reply<T> = oneshot::Sender<Result<T, OperationError>>;

/// What a client wants of a sandbox.
pub(super) enum Order {
    /// Another end of its time.
    SetEnd { end: NewEnd, reply: Reply<Sandbox> },
    /// Another policy, and how it is told.
    SetNetwork {
        traffic: Box<Traffic>,
        policy: NetworkPolicy,
        reply: Reply<()>,
    },
    /// Holding still.
    Pause {
        mode: PauseMode,
        condition: PauseCondition,
        reply: Reply<()>,
    },
    /// Running on, for at least this time.
    Resume {
        time: Duration,
        reply: Reply<(Sandbox, Found)>,
    },
    /// Holding still for who reads its files.
    HoldStill { reply: Reply<Held> },
    /// Writing its memory into a new directory.
    WriteMemory {
        directory: PathBuf,
        reply: Reply<(Memory, Sandbox)>,
    },
    /// The end.
    Kill { reply: Reply<()> },
}

/// When a sandbox ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum NewEnd {
    /// Then, sooner or later than before.
    At(i64),
    /// Then, unless it ends later anyway.
    NotBefore(i64),
}

impl Order {
    /// Whether it cannot be carried out while somebody reads the sandbox's files:
    /// what stops its processes, or lets them run on. Its time goes on meanwhile.
    fn waits_for_reader(&self) -> bool {
        match self {
            Self::Pause { .. } | Self::HoldStill { .. } | Self::WriteMemory { .. } => true,
            Self::SetEnd { .. }
            | Self::SetNetwork { .. }
            | Self::Resume { .. }
            | Self::Kill { .. } => false,
        }
    }

    /// Says that it is not carried out.
    fn refuse(self, error: OperationError) {
        // Who does not wait needs no answer.
        match self {
            Self::SetEnd { reply, .. } => drop(reply.send(Err(error))),
            Self::Resume { reply, .. } => drop(reply.send(Err(error))),
            Self::HoldStill { reply } => drop(reply.send(Err(error))),
            Self::WriteMemory { reply, .. } => drop(reply.send(Err(error))),
            Self::SetNetwork { reply, .. } | Self::Pause { reply, .. } | Self::Kill { reply } => {
                drop(reply.send(Err(error)));
            }
        }
    }
}

/// What a task holds for as long as its sandbox is there.
pub(super) type Places = (Registration, Admitted, Booked);

/// The task of one running sandbox.
pub(super) struct SandboxTask {
    pub(super) shared: Arc<Shared>,
    pub(super) row: Sandbox,
    pub(super) running: Arc<Running>,
    /// What happens at the end of its time.
    pub(super) at_end: LifecycleView,
    /// When that is.
    deadline: Deadline,
    /// Pauses at that time that failed, one after the other.
    failed_pauses: u32,
    /// While it runs.
    pub(super) sampler: Option<Sampler>,
    /// Whether something else tells of its end from now on.
    pub(super) is_another_life: bool,
    orders: mpsc::Receiver<Order>,
    /// Who keeps it still, and the orders that wait for that to end.
    pub(super) holder: Option<Holder>,
    deferred: VecDeque<Order>,
    /// Until the tombstone is there.
    pub(super) places: Places,
}

impl SandboxTask {
    /// Takes over a sandbox that everybody can reach, or that is paused or on
    /// its way to that or back.
    pub(super) fn start(
        row: Sandbox,
        running: Arc<Running>,
        orders: mpsc::Receiver<Order>,
        places: Places,
    ) {
        let task = Self {
            shared: Arc::clone(&places.0.shared),
            // What cannot be read is ended at its end.
            at_end: parse("description of its end", &row.lifecycle).unwrap_or_default(),
            deadline: Deadline::new(row.end_at_ms, now_ms()),
            failed_pauses: 0,
            row,
            running,
            sampler: None,
            is_another_life: false,
            orders,
            holder: None,
            deferred: VecDeque::new(),
            places,
        };
        tokio::spawn(task.run());
    }

    async fn run(mut self) {
        let ended = watch_end(Arc::clone(&self.running));
        tokio::pin!(ended);
        self.begin().await;
        let mut between;
        let ending = loop {
            if std::mem::take(&mut self.is_another_life) {
                ended.set(watch_end(Arc::clone(&self.running)));
            }
            let is_awake = self.row.state == SandboxState::Running;
            // Before an end is written, which says nothing of what it did.
            between = Between::of(self.row.state);
            self.book();
            // One that is to be paused at its end is paused when its files are read.
            let is_held = self.holder.is_some();
            let is_between = matches!(
                self.row.state,
                SandboxState::Pausing | SandboxState::Resuming
            );
            self.deadline.follow(self.row.end_at_ms, now_ms());
            tokio::select! {
                biased;
                () = &mut ended => break Ending::Found,
                order = self.orders.recv() => match order {
                    Some(Order::Kill { reply }) => match self.write_killing().await {
                        Ok(()) => break Ending::Asked(reply),
                        // On a full disk, an end is what makes room: the engine's
                        // own record says how it came should the server die meanwhile.
                        Err(OperationError::Database(error)) => {
                            tracing::warn!("an end is not written yet: {error}");
                            break Ending::Asked(reply);
                        }
                        Err(error) => {
                            let _ = reply.send(Err(error)); // who does not wait needs no answer
                        }
                    },
                    Some(order) if is_held && order.waits_for_reader() => self.defer(order),
                    Some(order) => self.carry_out(order).await,
                    // The registration holds the other end for as long as this task lives.
                    None => return,
                },
                // What did not come to its end, on a full disk for example, is tried again.
                () = sleep(PAUSE_RETRY), if is_between => self.begin().await,
                () = released(&mut self.holder) => {
                    self.holder = None;
                    while self.holder.is_none() && let Some(order) = self.deferred.pop_front() {
                        self.carry_out(order).await;
                    }
                }
                () = self.deadline.reached(), if is_awake && !(self.at_end.pauses && is_held) => {
                    if !self.at_end.pauses {
                        break Ending::TimeOver;
                    }
                    match self.pause(self.at_end.pause_mode, PauseCondition::None).await {
                        Ok(()) => self.failed_pauses = 0,
                        // It is left to who is in charge.
                        Err(OperationError::Fenced) => break Ending::TimeOver,
                        // A pause that does not work must not cost the sandbox.
                        Err(error) => {
                            let id = &self.running.id;
                            tracing::error!("sandbox {id} cannot be paused at its end: {error}");
                            let pause = PAUSE_RETRY * (1 << self.failed_pauses.min(PAUSE_DOUBLINGS));
                            self.failed_pauses += 1;
                            self.deadline.again_after(pause, self.row.end_at_ms);
                        }
                    }
                }
            }
        };
        self.sampler = None;
        self.end(ending, between).await;
    }

    /// Goes on where the row says that it stands.
    async fn begin(&mut self) {
        let done = match self.row.state {
            SandboxState::Pausing => self.lie_down().await,
            SandboxState::Resuming => {
                let left = self.row.end_at_ms.saturating_sub(now_ms());
                self.stand_up(left.max(0), now_ms()).await
            }
            SandboxState::Paused => {
                self.stay_down();
                Ok(())
            }
            SandboxState::Running | SandboxState::Creating | SandboxState::Killing => {
                self.sampler = Some(Sampler::start(&self.shared, &self.running, Between::Ran));
                Ok(())
            }
        };
        if let Err(error) = done {
            // Whoever wants something of it tries again.
            let id = &self.running.id;
            tracing::error!("sandbox {id} is left {}: {error}", self.row.state);
        }
    }

    /// Keeps an order until nobody reads its files.
    fn defer(&mut self, order: Order) {
        if self.deferred.len() < ORDERS_WAITING {
            self.deferred.push_back(order);
        } else {
            let text = "too many requests wait until its files are read".to_owned();
            order.refuse(OperationError::Failed(text));
        }
    }

    /// Books of the host what it needs where it stands.
    fn book(&mut self) {
        self.places.2.hold(match self.row.state {
            SandboxState::Paused => match self.kept() {
                Kept::Processes => Hold::Frozen,
                Kept::MemoryOnDisk | Kept::Files => Hold::Suspended,
            },
            SandboxState::Creating
            | SandboxState::Running
            | SandboxState::Pausing
            | SandboxState::Resuming
            | SandboxState::Killing => Hold::Running,
        });
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::SetEnd { end, reply } => {
                let done = self.set_end(end).await;
                let _ = reply.send(done); // who does not wait needs no answer
            }
            Order::SetNetwork {
                traffic,
                policy,
                reply,
            } => {
                let done = self.set_network(&traffic, policy).await;
                let _ = reply.send(done);
            }
            Order::Pause {
                mode,
                condition,
                reply,
            } => {
                let done = self.pause(mode, condition).await;
                let _ = reply.send(done);
            }
            Order::Resume { time, reply } => {
                let done = self.resume(time).await;
                let _ = reply.send(done);
            }
            Order::HoldStill { reply } => self.hold_still(reply).await,
            Order::WriteMemory { directory, reply } => {
                let done = self.write_memory(directory).await;
                let _ = reply.send(done);
            }
            // It ends the loop, so it is not carried out here.
            Order::Kill { reply } => {
                let _ = reply.send(Err(OperationError::NotFound));
            }
        }
    }

    pub(super) async fn set_end(&mut self, end: NewEnd) -> Result<Sandbox, OperationError> {
        if self.row.state != SandboxState::Running {
            return Err(OperationError::Paused);
        }
        let end_at_ms = match end {
            NewEnd::At(end_ms) => end_ms,
            // By what is left, and not by moments: the clock may have been set since.
            NewEnd::NotBefore(end_ms)
                if end_ms.saturating_sub(now_ms()) > self.deadline.left_ms() =>
            {
                end_ms
            }
            NewEnd::NotBefore(_) => self.row.end_at_ms,
        };
        if end_at_ms == self.row.end_at_ms {
            return Ok(self.row.clone());
        }
        let change = Change {
            end_at_ms: Some(end_at_ms),
            ..Change::default()
        };
        self.row = Step::WriteEnd.around(self.change(&change)).await?;
        let left = u64::try_from(end_at_ms.saturating_sub(now_ms())).unwrap_or(0);
        let time = self.at_end.monitors_time(Duration::from_millis(left));
        let telling = self.running.live.end_after(time);
        Step::SetEnd.around(telling).await?;
        Ok(self.row.clone())
    }

    async fn set_network(
        &mut self,
        traffic: &Traffic,
        policy: NetworkPolicy,
    ) -> Result<(), OperationError> {
        let before = self.row.network.clone();
        let change = |network| Change {
            network: Some(network),
            ..Change::default()
        };
        let wanted = change(json(traffic));
        self.row = Step::WriteNetwork.around(self.change(&wanted)).await?;
        let telling = self.running.live.set_network(policy);
        if let Err(error) = Step::SetNetwork.around(telling).await {
            // What is told is what holds.
            self.row = self.change(&change(before)).await?;
            return Err(error.into());
        }
        self.shared.note(&self.running.id, "network changed").await;
        Ok(())
    }

    pub(super) async fn change(&self, change: &Change) -> Result<Sandbox, OperationError> {
        let foundation = &self.shared.foundation;
        let changed = foundation
            .database
            .change_sandbox(
                &foundation.fence,
                &self.row.sandbox_id,
                self.row.expected(),
                change,
            )
            .await;
        Ok(changed?)
    }
}

/// Waits until the sandbox has ended by itself.
async fn watch_end(running: Arc<Running>) {
    while let Err(error) = running.live.ended().await {
        // No descriptor is left, perhaps: that is no reason to end a sandbox.
        tracing::warn!("sandbox {} is not watched right now: {error}", running.id);
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}
