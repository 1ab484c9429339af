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

use std::collections::HashMap;

use atoll_store::db::{Database, Fence};
use tokio::task::JoinSet;

use attempt::HookClient;
pub use hook::{Hook, HookError};

/// Hooks of one server, at most.
pub const HOOKS_MAX: usize = 16;

/// Everybody who is told what happens.
#[derive(Debug)]
pub struct Webhooks {
    hooks: Vec<Hook>,
    client: HookClient,
}

impl Webhooks {
    /// Those of `hooks`, which are told nothing yet.
    ///
    /// # Errors
    /// When one of them needs to know whom this machine trusts, and that cannot be read.
    pub fn new(hooks: Vec<Hook>) -> std::io::Result<Self> {
        Ok(Self {
            client: attempt::client(&hooks)?,
            hooks,
        })
    }

    /// Tells every hook what happens, for as long as this is polled: a task of the server.
    pub async fn deliver(self, database: Database, fence: Fence) {
        let Self { hooks, client } = self;
        let names: Vec<String> = hooks.iter().map(Hook::id).collect();
        if let Err(error) = database.keep_webhooks(&fence, &names).await {
            tracing::warn!("webhooks that were removed are still remembered: {error}");
        }
        let mut couriers = JoinSet::new();
        let mut places = HashMap::new();
        for hook in hooks {
            let place = hook.place();
            let courier =
                courier::Courier::new(database.clone(), fence.clone(), client.clone(), hook);
            places.insert(couriers.spawn(courier.run()).id(), place);
        }
        // They end with this, and none before it.
        while let Some(ended) = couriers.join_next_with_id().await {
            if let Err(error) = ended {
                let place = places.get(&error.id()).map_or("", String::as_str);
                tracing::error!(
                    "{place} is told nothing more until the server starts again: {error}"
                );
            }
        }
    }
}
