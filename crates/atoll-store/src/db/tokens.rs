//! Which keys were given a token for which sandbox. Tokens are computed above
//! and are nowhere in the database.

use super::{Database, DatabaseError, KeyId, NodeId, TenantId, read, transaction};

/// A key that may reach a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct TokenRecord {
    /// The sandbox.
    pub sandbox_id: String,
    /// The key.
    #[sqlx(try_from = "String")]
    pub key_id: KeyId,
    /// The tenant of both.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
}

impl Database {
    /// Notes that `key` gets a token for `sandbox`, as often as asked. Returns
    /// whether it may: the sandbox lives, the key is valid, and both are of
    /// one tenant.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn record_token(
        &self,
        sandbox: &str,
        key: KeyId,
        now_ms: i64,
    ) -> Result<bool, DatabaseError> {
        let key = key.to_string();
        let allowed: i64 = transaction!(self, |transaction| {
            sqlx::query(
                "INSERT INTO envd_tokens (sandbox_id, key_id, tenant_id, created_at_ms, node_id, epoch)
                 SELECT s.sandbox_id, k.key_id, s.tenant_id, $3, s.node_id, s.epoch
                 FROM sandboxes s JOIN api_keys k ON k.tenant_id = s.tenant_id
                 WHERE s.sandbox_id = $1 AND k.key_id = $2 AND k.revoked_at_ms IS NULL
                   AND (k.expires_at_ms IS NULL OR k.expires_at_ms > $3)
                 ON CONFLICT (sandbox_id, key_id) DO NOTHING",
            )
            .bind(sandbox)
            .bind(&key)
            .bind(now_ms)
            .execute(&mut *transaction)
            .await?;
            sqlx::query_scalar(
                "SELECT COUNT(*) FROM envd_tokens t
                 JOIN sandboxes s ON s.sandbox_id = t.sandbox_id AND s.tenant_id = t.tenant_id
                 JOIN api_keys k ON k.key_id = t.key_id AND k.tenant_id = t.tenant_id
                 WHERE t.sandbox_id = $1 AND t.key_id = $2 AND k.revoked_at_ms IS NULL
                   AND (k.expires_at_ms IS NULL OR k.expires_at_ms > $3)",
            )
            .bind(sandbox)
            .bind(&key)
            .bind(now_ms)
            .fetch_one(&mut *transaction)
            .await?
        });
        Ok(allowed > 0)
    }

    /// All tokens for live sandboxes of a node, for its server to know again.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn tokens_of_node(&self, node: &NodeId) -> Result<Vec<TokenRecord>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT t.sandbox_id, t.key_id, t.tenant_id FROM envd_tokens t
             JOIN sandboxes s ON s.sandbox_id = t.sandbox_id
             WHERE s.node_id = $1 ORDER BY t.sandbox_id, t.key_id"
        )
        .bind(node.as_str())
        .fetch_all(pool)
        .await?))
    }
}
