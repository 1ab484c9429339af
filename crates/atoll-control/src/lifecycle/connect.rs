//! Coming back to a sandbox: it is woken up if it is paused, its time is
//! extended, and the caller gets a token.

use std::time::Duration;

use atoll_store::db::SandboxState;

use super::{Created, Extension, InvalidWish, Lifecycle, OperationError, SandboxView};
use crate::identity::Caller;

/// How a sandbox was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It ran.
    Running,
    /// It was paused, and was woken up.
    Paused,
}

impl Lifecycle {
    /// The way into a sandbox of `caller`, which lives for at least `timeout`.
    ///
    /// # Errors
    /// When there is none, or the time cannot be.
    pub async fn connect(
        &self,
        caller: &Caller,
        id: &str,
        timeout: Duration,
    ) -> Result<(Created, Found), OperationError> {
        let lifetime_max = self.settings().lifetime_max;
        if timeout > lifetime_max {
            return Err(InvalidWish::TooLong(lifetime_max).into());
        }
        let (sandbox, row) = self.shared.row(caller, id).await?;
        let found = if row.state == SandboxState::Running {
            let extending = self.set_timeout(caller, id, timeout, Extension::OnlyLater);
            match extending.await {
                Ok(row) => Some(row),
                // It was paused since.
                Err(OperationError::Paused) => None,
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        let (row, found) = match found {
            Some(row) => (row, Found::Running),
            None => self.shared.resume(&sandbox, timeout).await?,
        };
        Ok((self.way_in(caller, row.try_into()?).await?, found))
    }

    /// Wakes up a paused sandbox of `caller`, which lives for `timeout` then.
    ///
    /// # Errors
    /// When there is none, it runs, or the time cannot be.
    pub async fn resume(
        &self,
        caller: &Caller,
        id: &str,
        timeout: Duration,
    ) -> Result<Created, OperationError> {
        let (_, row) = self.shared.row(caller, id).await?;
        if row.state == SandboxState::Running {
            return Err(OperationError::Running);
        }
        Ok(self.connect(caller, id, timeout).await?.0)
    }

    /// The token of a sandbox for `caller`.
    pub(super) async fn way_in(
        &self,
        caller: &Caller,
        view: SandboxView,
    ) -> Result<Created, OperationError> {
        let foundation = &self.shared.foundation;
        let known = foundation.running.known(&view.row.sandbox_id);
        let known = known.ok_or(OperationError::NotFound)?;
        Ok(Created {
            token: foundation.access.grant(caller, &known.id).await?,
            traffic_token: known.ingress.traffic_token.clone(),
            view,
        })
    }
}
