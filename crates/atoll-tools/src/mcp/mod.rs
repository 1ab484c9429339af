//! The tools over MCP.
//!
//! | file | owns |
//! |---|---|
//! | `handler.rs` | what is answered: tools, progress, cancellation |
//! | `resources.rs` | files and plots as resources |
//! | `stdio.rs` | one client on standard streams |
//! | `http.rs`, `sessions.rs` | many clients in HTTP, a session each |

mod handler;
mod http;
mod resources;
mod sessions;
mod stdio;

pub use handler::Listing;
pub use http::{HttpService, MESSAGE_BYTES_MAX, McpResponse};
pub use sessions::{Principal, SessionBounds};
pub use stdio::{StdioError, serve_stdio};
