//! Executions that run, and those that ended a moment ago: who asked for one
//! may come back for what it said.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_guest_client::ProcessInput;
use atoll_store::db::{Execution, ExecutionId, TenantId};
use tokio::sync::watch;

use super::report::Collected;
use super::wish::PROCESS;
use super::{BeginError, EventBuffer, ExecutionState, PER_SANDBOX_MAX, RUNNING_MAX};

/// How long an execution that ended is kept with all it said.
const ENDED_KEPT: Duration = Duration::from_secs(300);
/// Bytes of executions that ended, at most.
const ENDED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// An execution that runs, or ended a moment ago.
pub struct LiveExecution {
    first: Execution,
    buffer: Arc<EventBuffer>,
    pub(super) collected: Mutex<Collected>,
    cancelled: watch::Sender<bool>,
    ended: watch::Sender<Option<Arc<ExecutionState>>>,
    input: Mutex<Option<ProcessInput>>,
}

impl LiveExecution {
    fn new(first: Execution) -> Self {
        Self {
            first,
            buffer: Arc::default(),
            collected: Mutex::default(),
            cancelled: watch::channel(false).0,
            ended: watch::channel(None).0,
            input: Mutex::default(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> ExecutionId {
        self.first.execution_id
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.first.tenant_id
    }

    /// Where it runs.
    #[must_use]
    pub fn sandbox_id(&self) -> &str {
        &self.first.sandbox_id
    }

    /// What kind of work it is.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.first.kind
    }

    /// When it was asked for.
    #[must_use]
    pub fn created_at_ms(&self) -> i64 {
        self.first.created_at_ms
    }

    /// What happens in it.
    #[must_use]
    pub fn events(&self) -> &Arc<EventBuffer> {
        &self.buffer
    }

    /// Ends it, soon.
    pub fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Where a process gets its input from, while it runs.
    #[must_use]
    pub fn input(&self) -> Option<ProcessInput> {
        lock(&self.input).clone()
    }

    /// How it stands now.
    #[must_use]
    pub fn state(&self) -> ExecutionState {
        if let Some(ended) = self.ended.borrow().as_deref() {
            return ended.clone();
        }
        let collected = lock(&self.collected);
        let (stdout, stderr) = collected.output_bytes();
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        ExecutionState {
            execution: Execution {
                stdout_bytes: signed(stdout),
                stderr_bytes: signed(stderr),
                ..self.first.clone()
            },
            report: collected.report(),
            sandbox: None,
        }
    }

    /// What the history has of it now, without what it said.
    #[must_use]
    pub fn row(&self) -> Execution {
        let ended = self.ended.borrow();
        let known = ended.as_ref().map(|ended| &ended.execution);
        known.unwrap_or(&self.first).clone()
    }

    /// How it ended, when it has.
    pub async fn ended(&self) -> Arc<ExecutionState> {
        let mut ended = self.ended.subscribe();
        let found = ended.wait_for(Option::is_some).await;
        match found.as_deref() {
            Ok(Some(state)) => Arc::clone(state),
            // Its sender is this very object.
            Ok(None) | Err(_) => Arc::new(self.state()),
        }
    }

    pub(super) fn first(&self) -> &Execution {
        &self.first
    }

    pub(super) async fn cancelled(&self) {
        let mut cancelled = self.cancelled.subscribe();
        // Its sender is this very object.
        let _ = cancelled.wait_for(|is_cancelled| *is_cancelled).await;
    }

    pub(super) fn takes_input(&self, input: ProcessInput) {
        *lock(&self.input) = Some(input);
    }

    pub(super) fn end(&self, state: Arc<ExecutionState>) {
        *lock(&self.input) = None;
        self.ended.send_replace(Some(state));
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of them.
#[derive(Default)]
pub(super) struct LiveExecutions(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    by_id: HashMap<ExecutionId, Arc<LiveExecution>>,
    running: HashMap<String, usize>,
    running_count: usize,
    ended: VecDeque<(Instant, ExecutionId, usize)>,
    ended_bytes: usize,
}

impl LiveExecutions {
    /// Makes room for one more.
    pub(super) fn add(&self, first: Execution) -> Result<Arc<LiveExecution>, BeginError> {
        let mut inner = lock(&self.0);
        inner.forget();
        if inner.running_count >= RUNNING_MAX {
            return Err(BeginError::Busy {
                what: "the server",
                limit: RUNNING_MAX,
            });
        }
        let here = inner.running.entry(first.sandbox_id.clone()).or_default();
        if *here >= PER_SANDBOX_MAX {
            return Err(BeginError::Busy {
                what: "the sandbox",
                limit: PER_SANDBOX_MAX,
            });
        }
        *here += 1;
        inner.running_count += 1;
        let live = Arc::new(LiveExecution::new(first));
        inner.by_id.insert(live.id(), Arc::clone(&live));
        Ok(live)
    }

    /// It has ended, and may be forgotten later.
    pub(super) fn ended(&self, live: &LiveExecution, bytes: usize) {
        let mut inner = lock(&self.0);
        inner.running_count = inner.running_count.saturating_sub(1);
        if let Some(here) = inner.running.get_mut(live.sandbox_id()) {
            *here -= 1;
            if *here == 0 {
                inner.running.remove(live.sandbox_id());
            }
        }
        inner.ended.push_back((Instant::now(), live.id(), bytes));
        inner.ended_bytes += bytes;
        inner.forget();
    }

    pub(super) fn get(&self, id: ExecutionId) -> Option<Arc<LiveExecution>> {
        lock(&self.0).by_id.get(&id).cloned()
    }

    /// Whether something runs in a sandbox that ends by itself. A process in
    /// the background may never end.
    pub(super) fn is_busy(&self, sandbox: &str) -> bool {
        let inner = lock(&self.0);
        inner.running.contains_key(sandbox)
            && inner.by_id.values().any(|one| {
                one.sandbox_id() == sandbox && one.kind() != PROCESS && one.ended.borrow().is_none()
            })
    }

    pub(super) fn all(&self) -> Vec<Arc<LiveExecution>> {
        lock(&self.0).by_id.values().cloned().collect()
    }
}

impl Inner {
    fn forget(&mut self) {
        while let Some((at, id, bytes)) = self.ended.front().copied() {
            if at.elapsed() < ENDED_KEPT && self.ended_bytes <= ENDED_BYTES_MAX {
                return;
            }
            self.ended.pop_front();
            self.ended_bytes -= bytes;
            self.by_id.remove(&id);
        }
    }
}
