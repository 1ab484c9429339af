//! Decisions of Atoll: life cycle, live sandboxes, outcomes, templates and
//! identity.
//!
//! **Invariant**: nothing here knows HTTP framing, mounts or namespaces.
//! Sandboxes come from [`atoll_engine::Runtime`], bytes from [`atoll_store`].

pub mod identity;
pub mod isolation;
pub mod lifecycle;
mod live;
pub mod outcome;
pub mod running;
pub mod service;
pub mod templates;

pub use live::{LiveSandbox, OpenError};
