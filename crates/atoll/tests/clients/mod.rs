//! Clients that are not ours, and what the protocol tests do with them.
//!
//! - `python/`, `node/`: programs that use released clients; one line of JSON
//!   per case.
//!   They run alone as well, against any guest: `run.py sync NAME` with
//!   `GUEST_URL`, `GUEST_TOKEN`, `GUEST_SANDBOX_ID` and `GUEST_TEMPLATE_ID` runs
//!   the cases whose names contain `NAME`.
//! - `exchanges/`: what such clients put on the wire, byte for byte.

pub(crate) mod exchange;
pub(crate) mod guest;
pub(crate) mod program;
mod wire;
