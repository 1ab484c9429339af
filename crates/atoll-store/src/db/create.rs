//! The first row of a sandbox, written before anything of it exists, together
//! with the idempotency key of the request that asked for it.

use super::{
    Database, DatabaseError, Fence, Intent, KeyId, Lost, Metadata, Sandbox, SandboxState, TenantId,
    read, transaction, write,
};

/// A sandbox that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// Its id.
    pub sandbox_id: String,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// The key that makes it.
    pub key_id: KeyId,
    /// What it is made from.
    pub template_id: String,
    /// The template as it was asked for.
    pub template_name: String,
    /// What its owner writes on it.
    pub metadata: Metadata,
    /// JSON: its limits.
    pub limits: String,
    /// JSON: what it may reach, and who may reach it.
    pub network: String,
    /// JSON: what happens at its end, and on traffic while it is paused.
    pub lifecycle: String,
    /// Environment variables and the guest's token, encrypted.
    pub sealed: String,
    /// Version of the protocol its guest speaks.
    pub envd_version: String,
    /// What the client calls itself.
    pub client: String,
    /// The agent it works for.
    pub agent_id: Option<String>,
    /// The task it works on.
    pub task_id: Option<String>,
    /// Now.
    pub created_at_ms: i64,
    /// When its time is over.
    pub end_at_ms: i64,
}

/// What makes two requests the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The key that the client chose.
    pub key: String,
    /// Digest of what it asked for.
    pub request_digest: String,
    /// Keys from before this moment are forgotten.
    pub not_before_ms: i64,
}

impl Idempotency {
    /// What this request is to one that made `sandbox` with the same key.
    fn compared(&self, sandbox_id: String, digest: &str) -> Earlier {
        if self.request_digest == digest {
            Earlier::Repeated { sandbox_id }
        } else {
            Earlier::OtherRequest
        }
    }
}

/// What became of a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The sandbox is this caller's to make.
    New(Box<Sandbox>),
    /// Nothing new: its idempotency key was used before.
    Earlier(Earlier),
}

/// What an idempotency key was used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
    /// The same request made this sandbox already, or is still making it.
    Repeated {
        /// Its id; it may have ended since.
        sandbox_id: String,
    },
    /// Another request.
    OtherRequest,
}

/// Why a creation was not written.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// Another server is in charge of this node.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<sqlx::Error> for CreateError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What the transaction found.
enum Written {
    Row(Box<Sandbox>),
    Fenced,
    Known(Earlier),
}

impl Database {
    /// Stores a sandbox in the state `creating` with the intent to create it.
    /// With an idempotency key, of several such requests one gets
    /// [`Created::New`].
    ///
    /// # Errors
    /// When `fence` is not the newest of its node, the id is taken, or the
    /// database cannot be written.
    pub async fn create_sandbox(
        &self,
        fence: &Fence,
        new: &NewSandbox,
        idempotency: Option<&Idempotency>,
    ) -> Result<Created, CreateError> {
        match self.write_sandbox(fence, new, idempotency).await? {
            Written::Row(sandbox) => Ok(Created::New(sandbox)),
            Written::Fenced => Err(CreateError::Lost(Lost::Fenced {
                epoch: self.epoch_of(&fence.node).await?,
            })),
            Written::Known(earlier) => Ok(Created::Earlier(earlier)),
        }
    }

    async fn write_sandbox(
        &self,
        fence: &Fence,
        new: &NewSandbox,
        idempotency: Option<&Idempotency>,
    ) -> Result<Written, DatabaseError> {
        let tenant = new.tenant_id.to_string();
        Ok(transaction!(self, |transaction| 'written: {
            if let Some(asked) = idempotency {
                sqlx::query(
                    "DELETE FROM idempotency_keys
                     WHERE tenant_id = $1 AND idempotency_key = $2 AND created_at_ms < $3",
                )
                .bind(&tenant)
                .bind(&asked.key)
                .bind(asked.not_before_ms)
                .execute(&mut *transaction)
                .await?;
                let inserted = sqlx::query(
                    "INSERT INTO idempotency_keys (tenant_id, idempotency_key, request_digest, sandbox_id, created_at_ms, node_id, epoch)
                     VALUES ($1, $2, $3, $4, $5, $6, $7)
                     ON CONFLICT (tenant_id, idempotency_key) DO NOTHING",
                )
                .bind(&tenant)
                .bind(&asked.key)
                .bind(&asked.request_digest)
                .bind(&new.sandbox_id)
                .bind(new.created_at_ms)
                .bind(fence.node.as_str())
                .bind(fence.epoch)
                .execute(&mut *transaction)
                .await?;
                if inserted.rows_affected() == 0 {
                    let (sandbox, digest): (String, String) = sqlx::query_as(
                        "SELECT sandbox_id, request_digest FROM idempotency_keys
                         WHERE tenant_id = $1 AND idempotency_key = $2",
                    )
                    .bind(&tenant)
                    .bind(&asked.key)
                    .fetch_one(&mut *transaction)
                    .await?;
                    break 'written Written::Known(asked.compared(sandbox, &digest));
                }
            }
            let row: Option<Sandbox> = sqlx::query_as(
                "INSERT INTO sandboxes (sandbox_id, tenant_id, key_id, template_id, template_name,
                   state, intent, version, metadata, limits, network, lifecycle, sealed,
                   envd_version, client, agent_id, task_id, created_at_ms, started_at_ms,
                   end_at_ms, log_sequence, node_id, epoch)
                 SELECT $1, $2, $3, $4, $5, $6, $7, 1, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                   $17, $17, $18, 0, node_id, epoch
                 FROM nodes WHERE node_id = $19 AND epoch = $20
                 RETURNING *",
            )
            .bind(&new.sandbox_id)
            .bind(&tenant)
            .bind(new.key_id.to_string())
            .bind(&new.template_id)
            .bind(&new.template_name)
            .bind(SandboxState::Creating.as_str())
            .bind(Intent::Create.as_str())
            .bind(new.metadata.to_text())
            .bind(&new.limits)
            .bind(&new.network)
            .bind(&new.lifecycle)
            .bind(&new.sealed)
            .bind(&new.envd_version)
            .bind(&new.client)
            .bind(&new.agent_id)
            .bind(&new.task_id)
            .bind(new.created_at_ms)
            .bind(new.end_at_ms)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .fetch_optional(&mut *transaction)
            .await?;
            let Some(row) = row else {
                // An idempotency key without its sandbox must not stay.
                transaction.rollback().await?;
                return Ok(Written::Fenced);
            };
            Written::Row(Box::new(row))
        }))
    }

    /// Forgets the idempotency key that `sandbox` was made with, if any: its
    /// creation was undone, and the request may be repeated.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn forget_idempotency_key_of(&self, sandbox: &str) -> Result<(), DatabaseError> {
        write!(self, |pool| {
            sqlx::query("DELETE FROM idempotency_keys WHERE sandbox_id = $1")
                .bind(sandbox)
                .execute(pool)
                .await?;
        });
        Ok(())
    }

    /// What became of an earlier request with the same idempotency key, if
    /// there was one.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn earlier_creation(
        &self,
        tenant: TenantId,
        asked: &Idempotency,
    ) -> Result<Option<Earlier>, DatabaseError> {
        let known: Option<(String, String)> = read!(self, |pool| sqlx::query_as(
            "SELECT sandbox_id, request_digest FROM idempotency_keys
             WHERE tenant_id = $1 AND idempotency_key = $2 AND created_at_ms >= $3",
        )
        .bind(tenant.to_string())
        .bind(&asked.key)
        .bind(asked.not_before_ms)
        .fetch_optional(pool)
        .await?);
        Ok(known.map(|(sandbox, digest)| asked.compared(sandbox, &digest)))
    }
}
