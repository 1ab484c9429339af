//! Atoll's server as clients see it.
//!
//! | module | owns |
//! |---|---|
//! | [`listener`](Entrance) | sockets, connections and their bounds, stopping |
//! | [`routing`](Names) | where a request goes: host names, headers, signed URLs |
//! | [`control_plane`] | sandboxes as a whole: E2B's REST routes |
//! | `mcp` | tools for MCP clients, at `/mcp` |
//! | `data_plane` | the guest's port: who may call it, and the calls |
//! | `proxy` | every other port of a sandbox |
//! | [`webhooks`] | events, sent to those whom the operator names |
//! | [`tls`] | certificates, given or made |
//! | `splice` | bytes from socket to socket, past our memory |
//! | `crowd` | how much of it one sandbox may take |
//! | `answer` | what is said in the server's own name about sandboxes |
//!
//! ```text
//! socket ─▶ listener ─▶ routing ─┬─▶ control plane
//!                                ├─▶ data plane ─ interceptors ─▶ guest
//!                                └─▶ proxy ─────────────────────▶ user port
//! ```
//!
//! **Invariant**: nothing here knows mounts, namespaces or addresses of
//! sandboxes; the way in is `dial`. **Invariant**: no port of the guest's own
//! is reached through the proxy. **Invariant**: an answer that was cut short
//! breaks its connection, and never looks like a whole one.

mod answer;
mod app;
mod body;
pub mod control_plane;
mod crowd;
mod data_plane;
mod leash;
mod listener;
mod mcp;
mod proxy;
mod routing;
mod silence;
mod splice;
pub mod tls;
pub mod webhooks;

use std::io;
use std::sync::Arc;

use app::App;

pub use app::Services;
pub use listener::{Bounds, Entrance};
pub use mcp::{Mcp, McpSettings};
pub use routing::{DomainError, Names};

/// Answers on all entrances until `stop` comes, and then for as long as
/// requests in flight take, at most [`Bounds::grace`].
///
/// # Errors
/// When a socket cannot be accepted from any more.
pub async fn serve(
    entrances: Vec<Entrance>,
    services: Services,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let bounds = services.bounds.clone();
    let app = Arc::new(App::new(services));
    listener::listen(entrances, bounds, app, stop).await
}
