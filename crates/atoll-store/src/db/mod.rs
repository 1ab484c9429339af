//! The database: everything that must still be known after a crash and that
//! is not a blob. SQLite in `$ATOLL_HOME` by default, PostgreSQL for several
//! machines; one schema, one SQL text, the same methods.
//!
//! | file | owns |
//! |---|---|
//! | `open.rs` | finding, checking and opening a database |
//! | `schema.rs`, `migrations/` | its tables, from the first version on |
//! | `owner.rs`, `node.rs` | one server per home; which start of it writes |
//! | `settings.rs` | single values |
//! | `tenants.rs`, `keys.rs`, `tokens.rs` | who may do what |
//! | `create.rs`, `sandboxes.rs`, `listing.rs`, `tombstones.rs` | life of a sandbox |
//! | `logs.rs`, `metrics.rs` | what was seen of it, bounded |
//! | `events.rs` | what happened to all of them, in order, and who has been told |
//! | `sessions.rs`, `agent_grants.rs` | sessions of agents, and who else may use what |
//! | `executions.rs` | what was run, and how it ended |
//! | `usage.rs` | what sandboxes have used, by the minute |
//!
//! Every change of a sandbox is a **compare-and-set**: it names the state and
//! the version it was decided on, and the epoch of its server; who comes
//! second gets a [`Lost`] that says what is there now. An epoch is one start
//! of the server of one node: a new one [fences](Fence) off whoever still
//! writes with the one before.
//!
//! **What is acknowledged is on disk.** SQLite runs in WAL mode with
//! `synchronous = FULL`: one `fdatasync` per commit. `NORMAL` would survive
//! SIGKILL too, but after a power cut a revoked key could be valid again.
//!
//! **Invariant**: no policy here. JSON columns, sealed texts and hashes are
//! opaque. Times come from the caller, in milliseconds since 1970.

mod agent_grants;
mod create;
mod error;
mod events;
mod executions;
mod ids;
mod keys;
mod listing;
mod logs;
mod metrics;
mod node;
mod open;
mod owner;
mod sandboxes;
mod schema;
mod sessions;
mod settings;
mod state;
mod tenants;
mod tokens;
mod tombstones;
mod usage;

pub use agent_grants::GrantedObject;
pub use create::{CreateError, Created, Earlier, Idempotency, NewSandbox};
pub use error::DatabaseError;
pub use events::{
    EVENT_DETAIL_BYTES_MAX, Event, EventBounds, EventKind, EventPage, EventQuery, EventScope,
    NewEvent,
};
pub use executions::{
    Execution, ExecutionPage, ExecutionPlace, ExecutionQuery, ExecutionStatus, ExecutionUsage,
    HistoryBounds, StoredExecution,
};
pub use ids::{ExecutionId, InvalidId, KeyId, SessionId, TenantId};
pub use keys::{KeyRecord, NewKey, Revoked, Rotated};
pub use listing::{Cursor, InvalidCursor, Order, SandboxPage, SandboxQuery};
pub use logs::{Direction, LOG_ENTRIES_KEPT, LogEntry, LogLevel, LogQuery, NewLogEntry};
pub use metrics::{METRIC_INTERVAL_MS, METRIC_SAMPLES_KEPT, MetricSample};
pub use node::{Fence, NodeId};
pub use open::Location;
pub use owner::{HomeOwner, OwnerError};
pub use sandboxes::{Change, ChangeError, Expected, Lost, Metadata, Sandbox};
pub use schema::SCHEMA_VERSION;
pub use sessions::{
    Admitted, Session, SessionEnd, SessionPage, SessionPlace, SessionQuery, SessionUse,
};
pub use state::{Intent, SandboxState};
pub use tenants::Tenant;
pub use tokens::TokenRecord;
pub use tombstones::{Forgotten, Tombstone, TombstoneQuery};
pub use usage::{METERED_MS, MeterReading, MeteredUsage, UsageBy, UsageQuery, UsageSums};

use sqlx::{PgPool, SqlitePool};

/// An open database. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Database {
    connections: Connections,
    node: NodeId,
    event_bell: events::EventBell,
}

#[derive(Debug, Clone)]
enum Connections {
    Sqlite {
        /// One connection: writers wait here, in order, and not for locks.
        writer: SqlitePool,
        readers: SqlitePool,
    },
    Postgres(PgPool),
}

/// Runs the same expression on the connections for reading of either kind of database.
macro_rules! read {
    ($database:expr, |$pool:ident| $work:expr) => {
        match &$database.connections {
            $crate::db::Connections::Sqlite { readers: $pool, .. } => $work,
            $crate::db::Connections::Postgres($pool) => $work,
        }
    };
}

/// Runs the same statement on the connections for writing of either kind of database.
macro_rules! write {
    ($database:expr, |$pool:ident| $work:expr) => {
        match &$database.connections {
            $crate::db::Connections::Sqlite { writer: $pool, .. } => $work,
            $crate::db::Connections::Postgres($pool) => $work,
        }
    };
}

/// Runs the same statements in one transaction of either kind of database,
/// and commits unless they fail. SQLite takes its lock at once: a transaction
/// that reads first could not become one that writes.
macro_rules! transaction {
    ($database:expr, |$transaction:ident| $work:expr) => {
        match &$database.connections {
            $crate::db::Connections::Sqlite { writer, .. } => {
                let mut $transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
                let result = $work;
                $transaction.commit().await?;
                result
            }
            $crate::db::Connections::Postgres(pool) => {
                let mut $transaction = pool.begin().await?;
                let result = $work;
                $transaction.commit().await?;
                result
            }
        }
    };
}

use {read, transaction, write};

impl Database {
    /// The node in whose name this process writes.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Closes all connections; what is acknowledged is kept without it too.
    pub async fn close(&self) {
        match &self.connections {
            Connections::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            Connections::Postgres(pool) => pool.close().await,
        }
    }
}
