//! Decisions of Atoll: live sandboxes, outcomes, templates and identity
//! today; life cycle and pools with the server.
//!
//! **Invariant**: nothing here knows HTTP framing, mounts or namespaces.
//! Sandboxes come from [`atoll_engine::Runtime`], bytes from [`atoll_store`].

pub mod identity;
pub mod isolation;
mod live;
pub mod outcome;
pub mod running;
pub mod service;
pub mod templates;

pub use live::{LiveSandbox, OpenError};
