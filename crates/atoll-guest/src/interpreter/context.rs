//! A context: an id, a language, a directory, and the seat of its kernel, on
//! which one execution sits at a time.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::kernel::Kernel;
use super::language::Language;
use super::process::KernelProcess;
use super::start::{StartError, Starter};

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
    seat: Arc<AsyncMutex<Seat>>,
    outside: Arc<Mutex<Outside>>,
}

/// What those know who do not wait for the seat.
#[derive(Default)]
struct Outside {
    process: Option<Arc<KernelProcess>>,
    /// Why it is being ended, if somebody wanted that.
    ending: Option<&'static str>,
    is_removed: bool,
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

    /// The seat, as soon as it is free. Whoever came first gets it first.
    pub(super) async fn seat(&self) -> OwnedMutexGuard<Seat> {
        Arc::clone(&self.seat).lock_owned().await
    }

    /// The seat, if it is free.
    pub(super) fn free_seat(&self) -> Option<OwnedMutexGuard<Seat>> {
        Arc::clone(&self.seat).try_lock_owned().ok()
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
        self.end("the context was restarted while it ran this code. All of its variables and imports are lost.")
            .await;
        let mut seat = self.seat().await;
        seat.vacate().await;
        seat.notice = None;
        self.occupy(&mut seat, starter).await
    }

    /// Ends its kernel for good.
    pub(super) async fn remove(&self) {
        with(&self.outside, |outside| outside.is_removed = true);
        self.end("the context was removed while it ran this code.")
            .await;
        self.seat().await.vacate().await;
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

    /// Why its kernel was ended, if somebody wanted that.
    pub(super) fn ending(&self) -> Option<&'static str> {
        with(&self.outside, |outside| outside.ending)
    }
}

fn with<T>(outside: &Mutex<Outside>, work: impl FnOnce(&mut Outside) -> T) -> T {
    work(&mut outside.lock().unwrap_or_else(PoisonError::into_inner))
}
