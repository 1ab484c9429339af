//! Clients that are not ours, and what the protocol tests do with them.
//!
//! - `python/`, `node/`: programs that use released clients; one line of JSON
//!   per case.
//! - `exchanges/`: what such clients put on the wire, byte for byte.

pub(crate) mod exchange;
pub(crate) mod guest;
pub(crate) mod program;
mod wire;
