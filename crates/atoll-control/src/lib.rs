//! Decisions of Atoll: life cycle, live sandboxes, outcomes, templates,
//! identity, and the services for agents: sessions and executions.
//!
//! **Invariant**: nothing here knows HTTP framing, mounts or namespaces.
//! Sandboxes come from [`atoll_engine::Runtime`], bytes from [`atoll_store`].

pub mod executions;
pub mod identity;
pub mod isolation;
pub mod lifecycle;
mod live;
pub mod outcome;
pub mod running;
pub mod service;
pub mod sessions;
pub mod templates;

pub use live::{LiveSandbox, OpenError};
