//! A context: an id, a language, a directory, and the seat of its kernel, on
//! which one execution sits at a time.
//!
//! Executions stand in a line, and only the first of them waits for the seat.
//! Who restarts or removes the context does not stand in it, and so comes next.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::kernel::Kernel;
use super::language::Language;
use super::process::KernelProcess;
use super::start::{StartError, Starter};

/// How long it may take to end whatever sits in a context. A kernel that is
/// being started cannot be broken off; less than the host waits.
const SEIZE_BOUND: Duration = Duration::from_secs(25);

/// How often the kernel is ended meanwhile: it may have started only then.
const SEIZE_AGAIN: Duration = Duration::from_millis(250);

/// Whether a context is what clients get that name none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Default,
    Named,
}

/// A context.
pub(super) struct Context {
    pub(super) id: String,
    pub(super) language: Language,
    pub(super) cwd: String,
    pub(super) purpose: Use,
    line: Arc<AsyncMutex<()>>,
    seat: Arc<AsyncMutex<Seat>>,
    outside: Arc<Mutex<Outside>>,
}

/// An execution's turn. Its place in the line is given up after the seat.
pub(super) struct Turn {
    seat: OwnedMutexGuard<Seat>,
    _line: OwnedMutexGuard<()>,
}

impl Deref for Turn {
    type Target = Seat;

    fn deref(&self) -> &Seat {
        &self.seat
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut Seat {
        &mut self.seat
    }
}

/// What those know who do not wait for the seat.
#[derive(Default)]
struct Outside {
    process: Option<Arc<KernelProcess>>,
    /// Why it is being ended, if somebody wanted that.
    ending: Option<&'static str>,
    is_removed: bool,
    has_started: bool,
}

/// Where a kernel sits, or not.
pub(super) struct Seat {
    pub(super) kernel: Option<Kernel>,
    /// What the next client has to know.
    pub(super) notice: Option<String>,
    outside: Arc<Mutex<Outside>>,
}

/// A context as clients see it.
#[derive(Debug, Serialize)]
pub(super) struct ContextView<'a> {
    id: &'a str,
    language: &'a str,
    cwd: &'a str,
}

/// Why a context has no kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoKernel {
    #[error("the context was removed")]
    Removed,
    #[error("what runs in the context could not be ended within {} s\nhint: a sandbox whose processors or memory are used up may need longer; try again, or make a new context", SEIZE_BOUND.as_secs())]
    Busy,
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Context {
    pub(super) fn new(language: Language, cwd: String, purpose: Use) -> Self {
        let outside = Arc::<Mutex<Outside>>::default();
        Self {
            id: uuid::Uuid::new_v4().to_string(),
            language,
            cwd,
            purpose,
            line: Arc::default(),
            seat: Arc::new(AsyncMutex::new(Seat {
                kernel: None,
                notice: None,
                outside: Arc::clone(&outside),
            })),
            outside,
        }
    }

    pub(super) fn view(&self) -> ContextView<'_> {
        ContextView {
            id: &self.id,
            language: self.language.name(),
            cwd: &self.cwd,
        }
    }

    /// Whether it ever had a kernel.
    pub(super) fn has_started(&self) -> bool {
        with(&self.outside, |outside| outside.has_started)
    }

    /// A turn, as soon as it comes. Whoever came first gets it first.
    pub(super) async fn turn(&self) -> Turn {
        let line = Arc::clone(&self.line).lock_owned().await;
        Turn {
            seat: Arc::clone(&self.seat).lock_owned().await,
            _line: line,
        }
    }

    /// A turn, if it can be had at once.
    pub(super) fn free_turn(&self) -> Option<Turn> {
        let line = Arc::clone(&self.line).try_lock_owned().ok()?;
        Some(Turn {
            seat: Arc::clone(&self.seat).try_lock_owned().ok()?,
            _line: line,
        })
    }

    /// Makes sure that a kernel sits there.
    pub(super) async fn occupy(&self, seat: &mut Seat, starter: &Starter) -> Result<(), NoKernel> {
        if let Some(kernel) = &seat.kernel {
            let Some(exit) = kernel.process.exit() else {
                return Ok(());
            };
            seat.notice = Some(format!(
                "[the kernel {exit} since the last execution and was restarted: variables and imports of this context are lost]\n"
            ));
            seat.vacate().await;
        }
        if with(&self.outside, |outside| outside.is_removed) {
            return Err(NoKernel::Removed);
        }
        let kernel = starter.start(&self.language, &self.cwd).await?;
        let is_removed = with(&self.outside, |outside| {
            outside.process = Some(Arc::clone(&kernel.process));
            outside.ending = None;
            outside.has_started = true;
            outside.is_removed
        });
        if is_removed {
            return Err(NoKernel::Removed);
        }
        seat.kernel = Some(kernel);
        Ok(())
    }

    /// Ends its kernel, also while it runs something, and starts a new one.
    pub(super) async fn restart(&self, starter: &Starter) -> Result<(), NoKernel> {
        let mut seat = self
            .seize("the context was restarted while it ran this code. All of its variables and imports are lost.")
            .await?;
        seat.vacate().await;
        seat.notice = None;
        self.occupy(&mut seat, starter).await
    }

    /// Ends its kernel for good.
    pub(super) async fn remove(&self) -> Result<(), NoKernel> {
        with(&self.outside, |outside| outside.is_removed = true);
        let mut seat = self
            .seize("the context was removed while it ran this code.")
            .await?;
        seat.vacate().await;
        Ok(())
    }

    /// The seat, before everybody who stands in the line. Whoever sits on it
    /// loses the kernel.
    async fn seize(&self, why: &'static str) -> Result<OwnedMutexGuard<Seat>, NoKernel> {
        let deadline = Instant::now() + SEIZE_BOUND;
        let seat = Arc::clone(&self.seat).lock_owned();
        tokio::pin!(seat);
        loop {
            tokio::select! {
                biased;
                // Asked for before the kernel ends, so that nobody else is next.
                seat = &mut seat => return Ok(seat),
                () = self.end(why) => {}
            }
            if let Ok(seat) = timeout(SEIZE_AGAIN, &mut seat).await {
                return Ok(seat);
            }
            if Instant::now() >= deadline {
                return Err(NoKernel::Busy);
            }
        }
    }

    async fn end(&self, why: &'static str) {
        let process = with(&self.outside, |outside| {
            outside.ending = Some(why);
            outside.process.clone()
        });
        if let Some(process) = process {
            process.end().await;
        }
    }
}

impl Seat {
    /// Ends the kernel, if there is one.
    pub(super) async fn vacate(&mut self) {
        with(&self.outside, |outside| outside.process = None);
        if let Some(kernel) = self.kernel.take() {
            kernel.process.end().await;
        }
    }

    /// Ends the kernel with everything that it has become.
    pub(super) async fn vacate_crowd(&mut self) {
        if let Some(kernel) = &self.kernel {
            kernel.process.end_crowd().await;
        }
        self.vacate().await;
    }

    /// Why its kernel was ended, if somebody wanted that.
    pub(super) fn ending(&self) -> Option<&'static str> {
        with(&self.outside, |outside| outside.ending)
    }
}

fn with<T>(outside: &Mutex<Outside>, work: impl FnOnce(&mut Outside) -> T) -> T {
    work(&mut outside.lock().unwrap_or_else(PoisonError::into_inner))
}
