//! Coming back to a sandbox: its time is extended, and the caller gets a token.

use std::time::Duration;

use super::{Created, Extension, InvalidWish, Lifecycle, OperationError, SandboxView};
use crate::identity::Caller;

impl Lifecycle {
    /// The way into a running sandbox of `caller`, which lives for at least `timeout`.
    ///
    /// # Errors
    /// When there is none, or the time cannot be.
    pub async fn connect(
        &self,
        caller: &Caller,
        id: &str,
        timeout: Duration,
    ) -> Result<Created, OperationError> {
        let lifetime_max = self.settings().lifetime_max;
        if timeout > lifetime_max {
            return Err(InvalidWish::TooLong(lifetime_max).into());
        }
        let row = self
            .set_timeout(caller, id, timeout, Extension::OnlyLater)
            .await?;
        self.way_in(caller, row.try_into()?).await
    }

    /// The token of a running sandbox for `caller`.
    pub(super) async fn way_in(
        &self,
        caller: &Caller,
        view: SandboxView,
    ) -> Result<Created, OperationError> {
        let foundation = &self.shared.foundation;
        let running = foundation.running.get(&view.row.sandbox_id);
        let running = running.ok_or(OperationError::NotFound)?;
        Ok(Created {
            token: foundation.access.grant(caller, &running.id).await?,
            traffic_token: running.ingress.traffic_token.clone(),
            view,
        })
    }
}
