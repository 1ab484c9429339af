//! Events, sent to addresses that the operator named.
//!
//! | file | owns |
//! |---|---|
//! | `hook.rs` | one address, what it is told, and its secret |
//! | `signature.rs` | how the other side knows that it was us, and when |
//! | `attempt.rs` | one request, bounded |
//! | `courier.rs` | in order, again after a failure, and on after a restart |
//!
//! The life cycle writes events and waits for nobody; a courier per hook reads
//! them from the store, as any other reader does. **Invariant**: a secret is in
//! no log, no answer and no error. **Invariant**: nothing of what an address
//! answers is used but its status.

mod attempt;
mod courier;
mod hook;
mod signature;

use atoll_store::db::{Database, Fence};
use tokio::task::JoinSet;

pub use hook::{Hook, HookError};

/// Hooks of one server, at most.
pub const HOOKS_MAX: usize = 16;

/// Tells every hook what happens, for as long as this is polled: a task of the server.
///
/// # Errors
/// When the authorities that this machine trusts cannot be read.
pub async fn deliver(database: Database, fence: Fence, hooks: Vec<Hook>) -> std::io::Result<()> {
    let names: Vec<String> = hooks.iter().map(Hook::id).collect();
    if let Err(error) = database.keep_webhooks(&fence, &names).await {
        tracing::warn!("webhooks that were removed are still remembered: {error}");
    }
    let client = attempt::client()?;
    let mut couriers = JoinSet::new();
    for hook in hooks {
        let courier = courier::Courier::new(database.clone(), fence.clone(), client.clone(), hook);
        couriers.spawn(courier.run());
    }
    // They end with this.
    while couriers.join_next().await.is_some() {}
    Ok(())
}
