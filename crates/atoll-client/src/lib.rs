//! Sandboxes from Rust: Atoll's own server, or anything else that speaks
//! E2B's protocol.
//!
//! ```no_run
//! # async fn example() -> Result<(), atoll_client::ClientError> {
//! use atoll_client::{Client, CreateOptions, Endpoint};
//!
//! let client = Client::new(Endpoint::from_env()?)?;
//! let sandbox = client.create(&CreateOptions::default()).await?;
//! sandbox.files().write("/home/user/numbers", "1\n2\n3\n").await?;
//! let output = sandbox.commands().run("wc -l < numbers").await?;
//! assert_eq!(output.stdout_text(), "3\n");
//! sandbox.kill().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | file | owns |
//! |---|---|
//! | `endpoint.rs` | where the server is, and the key for it |
//! | `connector.rs` | connections, with TLS where the address says so |
//! | `rest.rs` | one question to the control plane |
//! | `client.rs`, `options.rs`, `list.rs`, `snapshots.rs` | making, finding and ending sandboxes |
//! | `events.rs` | what happens to them |
//! | `sandbox.rs`, `commands.rs`, `files.rs`, `code.rs` | working in one |
//!
//! **Invariant**: nothing here knows the server's inside; what it knows is the
//! wire. Answers are bounded in size and time, and texts of a sandbox cannot
//! move a terminal's cursor.

mod client;
mod code;
mod commands;
mod connector;
mod endpoint;
mod error;
mod events;
mod files;
mod list;
mod options;
mod rest;
mod sandbox;
mod snapshots;

pub use atoll_guest_client::{
    Code, CodeContext, CodeError, CodeEvent, CodeResult, CodeRun, Command, Entry, EntryKind,
    ExitStatus, FileReader, GuestError, GuestText, NewContext, Process, ProcessEvent, ProcessInput,
    PtySize, SaveError, Signal, Watch, WatchEvent, WatchEventKind, WatchOptions,
};
pub use atoll_protocol::rest::{
    LimitsWish, ListedSandbox, OnTimeout, Pool, PoolMode, SandboxDetail, SandboxEvent,
    SandboxLogEntry, SandboxMetric, SandboxState, SnapshotInfo,
};
pub use client::Client;
pub use code::{CodeInterpreter, CodeOptions, Execution, Logs, RunCodeError};
pub use commands::{Commands, Output, RunError};
pub use endpoint::{Endpoint, EndpointError};
pub use error::ClientError;
pub use events::{EventNews, EventOptions, EventStream};
pub use files::Files;
pub use list::{ListOptions, SandboxList};
pub use options::{CreateOptions, LogOptions, NetworkOptions, Span};
pub use sandbox::Sandbox;
pub use snapshots::SnapshotOptions;
