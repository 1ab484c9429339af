//! The end that a client asks for.

use super::task::Order;
use super::{Lifecycle, OperationError, Shared};
use crate::identity::Caller;
use atoll_engine::SandboxId;
use atoll_store::db::{Sandbox, SandboxState};
use tokio::sync::{mpsc, oneshot};

impl Lifecycle {
    /// Ends a sandbox of `caller`; when this returns, nothing is left of it.
    ///
    /// # Errors
    /// [`OperationError::NotFound`] when it is not the caller's, or is being
    /// ended already.
    pub async fn kill(&self, caller: &Caller, id: &str) -> Result<(), OperationError> {
        let (id, _) = self.shared.row(caller, id).await?;
        let (reply, answer) = oneshot::channel();
        self.shared.order(&id, Order::Kill { reply }).await?;
        answer.await.unwrap_or(Err(OperationError::NotFound))
    }
}

impl Shared {
    /// The row of a sandbox of `caller` that runs or is paused.
    pub(super) async fn row(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(SandboxId, Sandbox), OperationError> {
        let row = caller.sandbox(&self.foundation.database, id).await?;
        let id = row.sandbox_id.parse();
        let id = id.map_err(|_| OperationError::NotFound)?;
        match row.state {
            SandboxState::Running
            | SandboxState::Pausing
            | SandboxState::Paused
            | SandboxState::Resuming => Ok((id, row)),
            // What is on its way in or out is nobody's to use.
            SandboxState::Creating | SandboxState::Killing => Err(OperationError::NotFound),
        }
    }

    /// The row of a sandbox of `caller` that runs.
    pub(super) async fn running_row(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(SandboxId, Sandbox), OperationError> {
        let (id, row) = self.row(caller, id).await?;
        match row.state {
            SandboxState::Running => Ok((id, row)),
            SandboxState::Creating
            | SandboxState::Pausing
            | SandboxState::Paused
            | SandboxState::Resuming
            | SandboxState::Killing => Err(OperationError::Paused),
        }
    }

    /// Hands an order to the task of a sandbox.
    pub(super) async fn order(&self, id: &SandboxId, order: Order) -> Result<(), OperationError> {
        let sender: Option<mpsc::Sender<Order>> = self.tasks().get(id).cloned();
        let sender = sender.ok_or(OperationError::NotFound)?;
        let sent = sender.send(order).await;
        sent.map_err(|_| OperationError::NotFound)
    }
}
