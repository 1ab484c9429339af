//! The control plane of E2B as its clients speak it: what they send and what
//! they expect back, field by field.
//!
//! A field that is absent, one that is `null` and one that is `false` are
//! three things. In requests, `null` counts as absent, as it does for E2B;
//! unknown fields are ignored. In answers, what is `Option` without
//! `skip_serializing_if` is written as `null`.
//!
//! Times are texts of RFC 3339: what makes them belongs to the server.

mod error;
mod event;
mod log;
mod metric;
mod network;
mod pool;
mod sandbox;
mod secret;
mod snapshot;
mod team;
mod template;

pub use error::ErrorBody;
pub use event::{EventPage, SandboxEvent};
pub use log::{LogEntries, LogLine, SandboxLogEntry, SandboxLogs};
pub use metric::{LatestMetrics, SandboxMetric};
pub use network::{EgressChange, EgressProxy, Network, NetworkDetail};
pub use pool::{Pool, PoolMode};
pub use sandbox::{
    AutoResume, Connect, Extension, Lifecycle, LimitsWish, ListedSandbox, NewSandbox, OnTimeout,
    Pause, PauseMode, Sandbox, SandboxDetail, SandboxState, Timeout,
};
pub use secret::Secret;
pub use snapshot::{Fork, ForkResult, NewSnapshot, SnapshotInfo};
pub use team::Team;
pub use template::{BuildStatus, Template, TemplateAlias};

/// What E2B's own server says of every sandbox's client.
pub const CLIENT_ID: &str = "6532622b";
