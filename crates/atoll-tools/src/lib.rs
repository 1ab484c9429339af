//! Tools that agents call: run code and commands, keep processes, read, write
//! and search files, install packages, make and end sandboxes.
//!
//! | file | owns |
//! |---|---|
//! | `definition.rs`, `catalog.rs` | what a tool is, and all of them: one definition each |
//! | `aliases.rs` | the same under the names that other agents know |
//! | `documents.rs` | their schemas as the documents that makers of models take |
//! | `tools/` | what they do |
//! | `workplace.rs` | what they need of sandboxes; `served.rs` has those of a server |
//! | `desk.rs`, `process.rs` | a session of a client: its sandboxes, processes and plots |
//! | `cut.rs`, `error.rs` | results that fit a context window, and errors that help |
//! | [`mcp`] | all of it over MCP, on standard streams and in HTTP |
//!
//! ```text
//! client ─ MCP ─▶ mcp/handler ─▶ Tool ─▶ Desk ─▶ Workplace (makes, finds, ends)
//!                                  └───▶ Place: the guest's client (everything inside)
//! ```
//!
//! **Invariant**: `rmcp` is known in `mcp/` only. **Invariant**: a result has a
//! bound, and says how to get what is beyond it. **Invariant**: whoever drops a
//! call ends what it ran.

mod aliases;
mod catalog;
mod cut;
mod definition;
mod desk;
mod documents;
mod error;
pub mod mcp;
mod process;
mod served;
mod tools;
mod workplace;

pub use aliases::ALIASES;
pub use catalog::TOOLS;
pub use cut::{HEAD_CHARS, KEPT_BYTES_MAX, TAIL_CHARS};
pub use definition::{Answer, Call, Effect, Failure, Image, Outcome, Tool, World};
pub use desk::{Desk, InUse, PLOTS_MAX, PROCESSES_MAX, SANDBOXES_MAX};
pub use documents::{Format, document};
pub use error::{ErrorCode, ToolError};
pub use served::{IDLE, ServedWorkplace};
pub use workplace::{Listed, Place, Preview, Promise, Wanted, Workplace};

/// The tool of that name, an alias included.
#[must_use]
pub fn find(name: &str) -> Option<&'static Tool> {
    catalog::find(name).or_else(|| aliases::find(name))
}
