//! How long a sandbox lives: set anew, or extended.

use std::time::Duration;

use atoll_store::db::Sandbox;
use tokio::sync::oneshot;

use super::create::millis;
use super::task::{NewEnd, Order};
use super::{Lifecycle, OperationError};
use crate::identity::{Caller, now_ms};

/// How a new end of its time relates to the one that a sandbox has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// It takes its place, sooner or later.
    Replace,
    /// It counts only if it is later.
    OnlyLater,
}

impl Lifecycle {
    /// Lets a sandbox of `caller` live for `timeout` from now on, and no
    /// longer than any may. Returns what is stored then.
    ///
    /// # Errors
    /// When there is none, or it has lived as long as it may.
    pub async fn set_timeout(
        &self,
        caller: &Caller,
        id: &str,
        timeout: Duration,
        extension: Extension,
    ) -> Result<Sandbox, OperationError> {
        let (id, row) = self.shared.running_row(caller, id).await?;
        let last_ms = row
            .started_at_ms
            .saturating_add(millis(self.settings().lifetime_max));
        let now_ms = now_ms();
        if last_ms <= now_ms {
            return Err(OperationError::LifetimeOver);
        }
        let end_ms = now_ms.saturating_add(millis(timeout)).min(last_ms);
        let end = match extension {
            Extension::Replace => NewEnd::At(end_ms),
            Extension::OnlyLater => NewEnd::NotBefore(end_ms),
        };
        let (reply, answer) = oneshot::channel();
        self.shared.order(&id, Order::SetEnd { end, reply }).await?;
        answer.await.unwrap_or(Err(OperationError::NotFound))
    }
}
