//! The server: requests in, decisions asked of [`atoll_control`], answers out.
//!
//! **Invariant**: nothing here knows mounts, namespaces or processes.

pub mod control_plane;
