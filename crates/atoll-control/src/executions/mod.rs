//! Runs of code and commands, as agents ask for them: each is followed to its
//! end by a task of its own, can be watched by anybody who may, and is written
//! down.
//!
//! ```text
//! Executions::begin ─▶ drive.rs ─▶ guest
//!        │                │ events
//!        │                ▼
//!        │            EventBuffer ─▶ Follower (SSE, output of a process)
//!        └─▶ LiveExecution ─ ended() ─▶ ExecutionState
//!                         └▶ recorder.rs ─▶ history
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `wish.rs` | what is to be run, checked |
//! | `place.rs` | the sandbox it runs in, and whether the caller may use it |
//! | `drive.rs`, `attempt.rs` | from the first call to the guest to the end |
//! | `judge.rs`, `outcome_kind.rs` | why it ended, in one word |
//! | `buffer.rs`, `clipped.rs`, `report.rs` | what it said, bounded |
//! | `live.rs` | what runs, and what ended a moment ago |
//! | `recorder.rs`, `history.rs` | what is written down, and for how long |
//!
//! **Invariant**: code is sent to a guest once. What is tried again is only
//! what certainly did not reach it. **Invariant**: nobody who watches slows
//! an execution down; who is too slow is told what was dropped.

mod attempt;
mod buffer;
mod clipped;
mod drive;
mod history;
mod judge;
mod live;
mod outcome_kind;
mod place;
mod recorder;
mod report;
mod wish;

use std::sync::Arc;
use std::time::Duration;

use atoll_store::db::{Database, DatabaseError, ExecutionId, Fence};

use crate::identity::Caller;
use crate::lifecycle::Lifecycle;
use crate::running::RunningSandboxes;

pub use attempt::Attempt;
pub(crate) use attempt::Attempts;
pub use buffer::{EventBuffer, Followed, Follower, Stamped};
pub use live::LiveExecution;
pub use outcome_kind::OutcomeKind;
pub(crate) use place::{AGENTS_MAX, is_own};
pub use place::{Place, PlaceError, Places, may_use};
pub use report::{
    EndOfExecution, ExecutionEvent, ExecutionState, RaisedError, Report, SandboxFate, Truncated,
};
pub use wish::{
    CODE_BYTES_MAX, ExecutionWish, InvalidExecution, OUTPUT_BYTES_DEFAULT, OUTPUT_BYTES_MAX,
    PackageManager, TIMEOUT_DEFAULT, TIMEOUT_MAX, Work,
};

use live::LiveExecutions;
use recorder::Recorder;

/// Executions that run in one sandbox at once, at most.
pub const PER_SANDBOX_MAX: usize = 64;
/// Executions that run on a node at once, at most.
const RUNNING_MAX: usize = 4096;

/// What is kept of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistorySettings {
    /// For how long.
    pub kept: Duration,
    /// How many executions of one tenant.
    pub per_tenant: usize,
}

impl Default for HistorySettings {
    fn default() -> Self {
        Self {
            kept: Duration::from_secs(30 * 24 * 60 * 60),
            per_tenant: 100_000,
        }
    }
}

/// All executions of this node. Clones are the same.
#[derive(Clone)]
pub struct Executions {
    shared: Arc<Shared>,
}

struct Shared {
    lifecycle: Lifecycle,
    database: Database,
    fence: Fence,
    live: LiveExecutions,
    recorder: Recorder,
    history: HistorySettings,
}

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// It cannot be run like that.
    #[error("{0}")]
    Invalid(String),
    /// Too much runs already.
    #[error("{what} runs {limit} executions at once, which is the most there may be")]
    Busy {
        /// The sandbox, or the server.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// The sandbox did not take it. Nothing has run.
    #[error("the sandbox did not take it: {message}")]
    Unavailable {
        /// What the last attempt met.
        message: String,
        /// All of them.
        attempts: Vec<Attempt>,
    },
    /// The sandbox broke off before it said whether it took it. It may have run.
    #[error("the sandbox broke off before it said whether it runs: {0}")]
    Uncertain(String),
}

impl From<InvalidExecution> for BeginError {
    fn from(error: InvalidExecution) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl Executions {
    /// The executions of a node whose server has just started: what the one
    /// before left running is written down as interrupted.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn open(
        lifecycle: Lifecycle,
        database: Database,
        fence: Fence,
        history: HistorySettings,
    ) -> Result<Self, DatabaseError> {
        let outcome = OutcomeKind::ServerStopped.as_str();
        let now_ms = crate::identity::now_ms();
        let left = database
            .interrupt_executions(&fence, outcome, now_ms)
            .await?;
        if left > 0 {
            tracing::warn!("{left} executions ran when the server before ended");
        }
        let recorder = Recorder::start(database.clone(), fence.clone());
        Ok(Self {
            shared: Arc::new(Shared {
                lifecycle,
                database,
                fence,
                live: LiveExecutions::default(),
                recorder,
                history,
            }),
        })
    }

    /// Where sandboxes are found.
    #[must_use]
    pub fn places(&self, running: Arc<RunningSandboxes>) -> Places {
        Places::new(self.shared.lifecycle.clone(), running, self.clone())
    }

    /// Whether something runs in a sandbox that ends by itself.
    pub(crate) fn is_busy(&self, sandbox: &str) -> bool {
        self.shared.live.is_busy(sandbox)
    }

    /// Begins to run something in the name of `caller`, and returns when it
    /// runs. It runs to its end, whoever is interested.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn begin(
        &self,
        caller: &Caller,
        place: &Place,
        wish: ExecutionWish,
    ) -> Result<Arc<LiveExecution>, BeginError> {
        self.begin_after(caller, place, wish, Vec::new()).await
    }

    /// The same after attempts elsewhere, none of which took it.
    pub(crate) async fn begin_after(
        &self,
        caller: &Caller,
        place: &Place,
        wish: ExecutionWish,
        earlier: Vec<Attempt>,
    ) -> Result<Arc<LiveExecution>, BeginError> {
        wish.check()?;
        let id = ExecutionId::random();
        let row = wish.first_row(id, caller, place, self.shared.lifecycle.tier());
        let live = self.shared.live.add(row)?;
        drive::begin(&self.shared, &live, place, (wish, earlier)).await?;
        Ok(live)
    }

    /// An execution of `caller` that runs, or ended a moment ago.
    #[must_use]
    pub fn live(&self, caller: &Caller, id: ExecutionId) -> Option<Arc<LiveExecution>> {
        let live = self.shared.live.get(id)?;
        (live.tenant() == caller.tenant).then_some(live)
    }

    /// What runs in a sandbox, and what ended there a moment ago, the oldest first.
    #[must_use]
    pub fn live_in(&self, caller: &Caller, sandbox: &str) -> Vec<Arc<LiveExecution>> {
        let mut found = self.shared.live.all();
        found.retain(|one| one.tenant() == caller.tenant && one.sandbox_id() == sandbox);
        found.sort_by_key(|one| one.created_at_ms());
        found
    }

    /// Waits until everything that ended so far is written down.
    pub async fn flush(&self) {
        self.shared.recorder.flush().await;
    }
}
