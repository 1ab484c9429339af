//! `/api/v1`: services for agents, for who does not speak E2B's protocol.
//!
//! ```text
//! request ─▶ identity.rs (request id, key, agent) ─▶ one file per subject ─▶ Executions, Sessions, Lifecycle
//!         ◀─ problem.rs (one form of error) ◀───────────────────────────────┘
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `identity.rs` | who asks, and the id of the request |
//! | `problem.rs` | the catalogue of errors (`docs/errors.md`) |
//! | `request.rs` | bodies, queries and paths, bounded |
//! | `sandboxes.rs`, `execute.rs`, `executions.rs`, `events.rs`, `sessions.rs`, `files.rs`, `processes.rs`, `usage.rs` | handlers, thin |
//! | `wire.rs`, `wire_execution.rs` | what answers hold |
//! | `openapi.rs`, `operations.rs` | the document that describes all of it |
//! | `docs.rs` | a page to try it |
//!
//! **Invariant**: nothing is decided here. **Invariant**: every route is in
//! the table of routes and in the document; a test compares both.

mod docs;
mod events;
mod execute;
mod executions;
mod files;
mod identity;
mod openapi;
mod operations;
mod problem;
mod processes;
mod request;
mod sandboxes;
mod sessions;
mod usage;
mod wire;
mod wire_execution;

pub use problem::ErrorCode;

pub(super) use docs::{page, script, style};
pub(super) use execute::{in_sandbox, in_session, packages};
pub(super) use executions::{cancel, execution, executions, follow};
pub(super) use files::{
    download, list_files, make_directory, read_file, remove_file, stat_file, upload, write_file,
};
pub(super) use identity::{admit, authenticate, with_request_id};
pub(super) use openapi::document;
pub(super) use problem::Problem;
pub(super) use processes::{
    output, process, processes, start_process, stop_process, write_to_process,
};
pub(super) use sandboxes::{
    create_sandbox, delete_sandbox, let_in_sandbox, list_all, list_sandboxes, sandbox,
    shut_out_of_sandbox,
};
pub(super) use sessions::{
    agents_of_session, complete_task, create_session, delete_session, let_in_session, session,
    sessions, shut_out_of_session,
};
pub(super) use usage::{usage, usage_of_sandbox};

/// Below which all of it is.
pub(super) const PREFIX: &str = "/api/v1/";
