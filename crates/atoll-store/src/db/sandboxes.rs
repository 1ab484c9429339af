//! Live sandboxes: what is known of one, and how that changes.

use std::collections::BTreeMap;

use super::events::insert_events;
use super::{
    Database, DatabaseError, Fence, Intent, KeyId, NewEvent, NodeId, SandboxState, TenantId, read,
    transaction, write,
};

/// What a sandbox's owner wrote on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata(pub BTreeMap<String, String>);

impl Metadata {
    /// Whether everything in `wanted` is here too, with the same values.
    #[must_use]
    pub fn includes(&self, wanted: &Self) -> bool {
        wanted
            .0
            .iter()
            .all(|(name, value)| self.0.get(name) == Some(value))
    }

    pub(super) fn to_text(&self) -> String {
        // Maps of texts always have a form in JSON.
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

impl TryFrom<String> for Metadata {
    type Error = DatabaseError;

    fn try_from(text: String) -> Result<Self, DatabaseError> {
        serde_json::from_str(&text)
            .map(Self)
            .map_err(|_| DatabaseError::Content {
                what: "map of metadata",
                found: text,
            })
    }
}

/// Everything that is stored of a live sandbox.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Sandbox {
    /// Its id.
    pub sandbox_id: String,
    /// Whose it is.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
    /// The key that made it.
    #[sqlx(try_from = "String")]
    pub key_id: KeyId,
    /// What it was made from.
    pub template_id: String,
    /// The template as it was asked for.
    pub template_name: String,
    /// Where it is in its life.
    #[sqlx(try_from = "String")]
    pub state: SandboxState,
    /// The [`Intent`] in words; see [`Sandbox::intent`].
    #[sqlx(rename = "intent")]
    intent_text: Option<String>,
    /// Grows with every change.
    pub version: i64,
    /// What its owner wrote on it.
    #[sqlx(try_from = "String")]
    pub metadata: Metadata,
    /// JSON: its limits.
    pub limits: String,
    /// JSON: what it may reach, and who may reach it.
    pub network: String,
    /// JSON: what happens at its end, and on traffic while it is paused.
    pub lifecycle: String,
    /// JSON of the engine: how to find it after a restart.
    pub handle: Option<String>,
    /// Environment variables and the guest's token, encrypted.
    pub sealed: String,
    /// Version of the protocol its guest speaks.
    pub envd_version: String,
    /// What the client that made it calls itself.
    pub client: String,
    /// How it was paused.
    pub pause_mode: Option<String>,
    /// The agent it works for.
    pub agent_id: Option<String>,
    /// The task it works on.
    pub task_id: Option<String>,
    /// When its creation was asked for.
    pub created_at_ms: i64,
    /// When it began to run; until then, when it was asked for.
    pub started_at_ms: i64,
    /// When its time is over; for a paused one, when it was paused.
    pub end_at_ms: i64,
    /// The node it is on.
    pub node_id: String,
    /// The epoch that changed it last.
    pub epoch: i64,
}

impl Sandbox {
    /// What its server was about to do.
    ///
    /// # Errors
    /// When the row holds a word that this program does not know.
    pub fn intent(&self) -> Result<Option<Intent>, DatabaseError> {
        self.intent_text.clone().map(Intent::try_from).transpose()
    }

    /// What a change that is decided on this row has to expect.
    #[must_use]
    pub const fn expected(&self) -> Expected {
        Expected {
            state: self.state,
            version: self.version,
        }
    }
}

/// What a change was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// State at that time.
    pub state: SandboxState,
    /// Version at that time.
    pub version: i64,
}

/// What to change; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// New state.
    pub state: Option<SandboxState>,
    /// What is about to be done, or `Some(None)` when it is done.
    pub intent: Option<Option<Intent>>,
    /// It began to run.
    pub started_at_ms: Option<i64>,
    /// New end of its time.
    pub end_at_ms: Option<i64>,
    /// JSON: what it may reach.
    pub network: Option<String>,
    /// JSON of the engine.
    pub handle: Option<String>,
    /// Sealed text.
    pub sealed: Option<String>,
    /// How it was paused.
    pub pause_mode: Option<String>,
    /// What is told of it, written with it or not at all.
    pub events: Vec<NewEvent>,
}

/// Why a change was not made: somebody else was first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// There is no such live sandbox on this node.
    #[error("the sandbox is gone")]
    Missing,
    /// It was changed in between.
    #[error("the sandbox is {state} by now, at version {version} of epoch {epoch}")]
    Changed {
        /// State it is in.
        state: SandboxState,
        /// Version it has.
        version: i64,
        /// Epoch of whoever changed it.
        epoch: i64,
    },
    /// A later start of this node's server is in charge.
    #[error("a later start of the server is in charge: its epoch is {epoch}")]
    Fenced {
        /// Its epoch.
        epoch: i64,
    },
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Somebody else was first.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<sqlx::Error> for ChangeError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What an empty text stands for where a change may also clear a field.
const CLEAR: &str = "";

impl Database {
    /// A live sandbox of `tenant`. That of another tenant is not found, like
    /// one that never was.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn sandbox(
        &self,
        tenant: TenantId,
        sandbox: &str,
    ) -> Result<Option<Sandbox>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM sandboxes WHERE sandbox_id = $1 AND tenant_id = $2"
        )
        .bind(sandbox)
        .bind(tenant.to_string())
        .fetch_optional(pool)
        .await?))
    }

    /// All live sandboxes of a node, for its server to find again.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn sandboxes_of_node(&self, node: &NodeId) -> Result<Vec<Sandbox>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM sandboxes WHERE node_id = $1 ORDER BY created_at_ms, sandbox_id"
        )
        .bind(node.as_str())
        .fetch_all(pool)
        .await?))
    }

    /// How many live sandboxes a tenant has, whatever their state.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn count_sandboxes(&self, tenant: TenantId) -> Result<i64, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_scalar(
            "SELECT COUNT(*) FROM sandboxes WHERE tenant_id = $1"
        )
        .bind(tenant.to_string())
        .fetch_one(pool)
        .await?))
    }

    /// Changes a sandbox if it is still as `expected`, and returns it as it is then.
    ///
    /// # Errors
    /// [`Lost`] if it is not, or when `fence` is not the newest of its node.
    pub async fn change_sandbox(
        &self,
        fence: &Fence,
        sandbox: &str,
        expected: Expected,
        change: &Change,
    ) -> Result<Sandbox, ChangeError> {
        let intent = change
            .intent
            .map(|intent| intent.map_or(CLEAR, Intent::as_str));
        let changed: Option<Sandbox> = transaction!(self, |transaction| {
            let changed: Option<Sandbox> = sqlx::query_as(
                "UPDATE sandboxes SET version = version + 1, epoch = $3,
               state = COALESCE($6, state),
               intent = NULLIF(COALESCE($7, intent, ''), ''),
               started_at_ms = COALESCE($8, started_at_ms),
               end_at_ms = COALESCE($9, end_at_ms),
               network = COALESCE($10, network),
               handle = COALESCE($11, handle),
               sealed = COALESCE($12, sealed),
               pause_mode = COALESCE($13, pause_mode)
             WHERE sandbox_id = $1 AND node_id = $2 AND state = $4 AND version = $5
               AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $2 AND epoch = $3)
             RETURNING *",
            )
            .bind(sandbox)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .bind(expected.state.as_str())
            .bind(expected.version)
            .bind(change.state.map(SandboxState::as_str))
            .bind(intent)
            .bind(change.started_at_ms)
            .bind(change.end_at_ms)
            .bind(&change.network)
            .bind(&change.handle)
            .bind(&change.sealed)
            .bind(&change.pause_mode)
            .fetch_optional(&mut *transaction)
            .await?;
            if let Some(changed) = &changed {
                let tenant = changed.tenant_id.to_string();
                insert_events!(transaction, fence, &tenant, &change.events);
            }
            changed
        });
        match changed {
            Some(sandbox) => {
                if !change.events.is_empty() {
                    self.event_bell.ring();
                }
                Ok(sandbox)
            }
            None => Err(self.loss(fence, sandbox).await?.into()),
        }
    }

    /// Why a change of `sandbox` under `fence` was lost.
    pub(super) async fn loss(&self, fence: &Fence, sandbox: &str) -> Result<Lost, DatabaseError> {
        let epoch = self.epoch_of(&fence.node).await?;
        if epoch != fence.epoch {
            return Ok(Lost::Fenced { epoch });
        }
        let found: Option<Sandbox> = write!(self, |pool| sqlx::query_as(
            "SELECT * FROM sandboxes WHERE sandbox_id = $1 AND node_id = $2"
        )
        .bind(sandbox)
        .bind(fence.node.as_str())
        .fetch_optional(pool)
        .await?);
        Ok(found.map_or(Lost::Missing, |found| Lost::Changed {
            state: found.state,
            version: found.version,
            epoch: found.epoch,
        }))
    }
}
