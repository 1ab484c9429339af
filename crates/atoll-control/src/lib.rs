//! Decisions of Atoll: templates today; life cycle, identity and pools with the server.
//!
//! **Invariant**: nothing here knows HTTP framing, mounts or namespaces.
//! Sandboxes come from [`atoll_engine::Runtime`], bytes from [`atoll_store`].

pub mod templates;
