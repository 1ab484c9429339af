//! Who writes: a node is one home on one machine, an epoch one start of its server.

use std::fmt;
use std::io;
use std::path::Path;

use sqlx::Row as _;
use uuid::Uuid;

use super::{Database, DatabaseError, read, write};
use crate::{StateWrite, write_once};

/// File of the home that holds its node's id.
const FILE: &str = "node_id";

/// The name of a home in a database that several may share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeId(String);

impl NodeId {
    /// The id of `home`, made when it is first asked for.
    ///
    /// # Errors
    /// When the file cannot be read or made, or holds something else.
    pub fn of_home(home: &Path) -> Result<Self, DatabaseError> {
        let path = home.join(FILE);
        let fresh = format!("{}\n", Uuid::new_v4());
        let text = write_once(StateWrite::NodeId, &path, fresh.as_bytes())
            .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
            .map_err(|source| DatabaseError::File { path, source })?;
        Uuid::try_parse(text.trim_end())
            .map(|id| Self(id.to_string()))
            .map_err(|_| DatabaseError::Content {
                what: "node id",
                found: text,
            })
    }

    /// As rows have it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The right of one start of a server to change the sandboxes of its node. It
/// ends when a later start takes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    pub(super) node: NodeId,
    pub(super) epoch: i64,
}

impl Fence {
    /// Number of the start that this is.
    #[must_use]
    pub const fn epoch(&self) -> i64 {
        self.epoch
    }
}

impl Database {
    /// Begins a new epoch of this node: writers with an earlier one are refused from now on.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn begin_epoch(&self, now_ms: i64) -> Result<Fence, DatabaseError> {
        let epoch = write!(self, |pool| sqlx::query(
            "INSERT INTO nodes (node_id, epoch, started_at_ms) VALUES ($1, 1, $2)
             ON CONFLICT (node_id) DO UPDATE
             SET epoch = nodes.epoch + 1, started_at_ms = $2
             RETURNING epoch",
        )
        .bind(self.node.as_str())
        .bind(now_ms)
        .fetch_one(pool)
        .await?
        .try_get(0)?);
        Ok(Fence {
            node: self.node.clone(),
            epoch,
        })
    }

    /// The epoch of this node; 0 before its first server.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn epoch(&self) -> Result<i64, DatabaseError> {
        self.epoch_of(&self.node).await
    }

    pub(super) async fn epoch_of(&self, node: &NodeId) -> Result<i64, DatabaseError> {
        let epoch: Option<i64> = read!(self, |pool| sqlx::query_scalar(
            "SELECT epoch FROM nodes WHERE node_id = $1"
        )
        .bind(node.as_str())
        .fetch_optional(pool)
        .await?);
        Ok(epoch.unwrap_or(0))
    }
}
