//! Something to run in a session: in its sandbox, or in another one where that
//! ended before it took anything.

use std::sync::Arc;
use std::time::Duration;

use atoll_store::db::SessionId;
use tokio::time::{Instant, sleep, timeout};

use super::{Acquired, SessionError, Sessions};
use crate::executions::{BeginError, ExecutionWish, Executions, LiveExecution};
use crate::identity::Caller;
use crate::running::Running;

/// How long it may take until the end of a sandbox is known that took nothing.
const END_BOUND: Duration = Duration::from_secs(2);
/// Pause between two looks whether everybody knows of it.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Why nothing was run in a session.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The session cannot be used.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Its sandbox did not take it.
    #[error(transparent)]
    Begin(#[from] BeginError),
}

impl Sessions {
    /// Begins something in a session that `caller` may use. Where its sandbox
    /// certainly did not take it and has ended, another one gets it.
    ///
    /// # Errors
    /// When the session cannot be used, or it was not begun.
    pub async fn begin(
        &self,
        executions: &Executions,
        caller: &Caller,
        id: SessionId,
        wish: ExecutionWish,
    ) -> Result<(Acquired, Arc<LiveExecution>), RunError> {
        let acquired = self.acquire(caller, id).await?;
        let begun = executions.begin(caller, &acquired.place, wish.clone());
        let (message, attempts) = match begun.await {
            Ok(live) => return Ok((acquired, live)),
            Err(BeginError::Unavailable { message, attempts }) => (message, attempts),
            Err(error) => return Err(error.into()),
        };
        if !self.has_ended(&acquired.place.sandbox).await {
            return Err(BeginError::Unavailable { message, attempts }.into());
        }
        let acquired = self.acquire(caller, id).await?;
        let begun = executions.begin_after(caller, &acquired.place, wish, attempts);
        let live = begun.await?;
        Ok((acquired, live))
    }

    /// Whether a sandbox has ended, and nobody takes it for the session's any more.
    async fn has_ended(&self, sandbox: &Running) -> bool {
        let until = Instant::now() + END_BOUND;
        if !matches!(timeout(END_BOUND, sandbox.live.ended()).await, Ok(Ok(()))) {
            return false;
        }
        let running = self.shared.places.running();
        while running.get(sandbox.id.as_str()).is_some() {
            if Instant::now() >= until {
                return false;
            }
            sleep(LOOK_PAUSE).await;
        }
        true
    }
}
