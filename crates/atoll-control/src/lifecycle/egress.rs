//! Another policy for what a running sandbox may reach.

use atoll_engine::NetworkPolicy;
use tokio::sync::oneshot;

use super::task::Order;
use super::view::parse;
use super::{Egress, InvalidTraffic, Lifecycle, OperationError, Traffic};
use crate::identity::Caller;

impl Lifecycle {
    /// Puts `egress` in place of what a sandbox of `caller` could reach so
    /// far. Who may come to its ports stays as it was.
    ///
    /// # Errors
    /// When there is none, or it cannot be so.
    pub async fn set_egress(
        &self,
        caller: &Caller,
        id: &str,
        egress: Egress,
    ) -> Result<(), OperationError> {
        let (id, row) = self.shared.running_row(caller, id).await?;
        let before: Traffic = parse("description of traffic", &row.network)?;
        let default = &self.settings().network;
        let policy = egress.policy(default)?;
        let has_interface = before
            .egress
            .policy(default)
            .as_ref()
            .map_or(true, NetworkPolicy::has_interface);
        if policy.has_interface() && !has_interface {
            return Err(InvalidTraffic::NoNetwork.into());
        }
        let traffic = Box::new(Traffic { egress, ..before });
        let (reply, answer) = oneshot::channel();
        let order = Order::SetNetwork {
            traffic,
            policy,
            reply,
        };
        self.shared.order(&id, order).await?;
        answer.await.unwrap_or(Err(OperationError::NotFound))
    }
}
