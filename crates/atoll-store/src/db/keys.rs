//! API keys, as hashes. What a key is and how it is hashed is decided above.

use super::{Database, DatabaseError, KeyId, TenantId, read, transaction, write};

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct KeyRecord {
    /// Its id, which opens nothing.
    #[sqlx(try_from = "String")]
    pub key_id: KeyId,
    /// Whose it is.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
    /// What people call it.
    pub name: String,
    /// What it may do, in one word.
    pub role: String,
    /// The keyed hash of the key.
    pub hash: String,
    /// The end of the key, for display.
    pub suffix: String,
    /// When it was made.
    pub created_at_ms: i64,
    /// When it ends by itself.
    pub expires_at_ms: Option<i64>,
    /// When it was last seen, to the minute.
    pub last_used_at_ms: Option<i64>,
    /// When it was ended.
    pub revoked_at_ms: Option<i64>,
    /// The key that took its place, as text.
    pub rotated_to: Option<String>,
}

impl KeyRecord {
    /// Whether it opens anything at `now_ms`.
    #[must_use]
    pub fn is_valid(&self, now_ms: i64) -> bool {
        self.revoked_at_ms.is_none() && self.expires_at_ms.is_none_or(|end| now_ms < end)
    }
}

/// A key to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Its id.
    pub key_id: KeyId,
    /// Whose it is.
    pub tenant_id: TenantId,
    /// What people call it.
    pub name: String,
    /// What it may do, in one word.
    pub role: String,
    /// The keyed hash of the key.
    pub hash: String,
    /// The end of the key.
    pub suffix: String,
    /// When it was made.
    pub created_at_ms: i64,
    /// When it ends by itself.
    pub expires_at_ms: Option<i64>,
}

/// What became of a revocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// It is over now.
    Now,
    /// It was over before.
    Before,
    /// There is no such key.
    Missing,
}

/// What became of a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotated {
    /// The new key is valid; the old one until the given moment.
    Done {
        /// End of the old key.
        old_expires_at_ms: i64,
    },
    /// The key was rotated before, revoked, or has expired.
    Over,
    /// There is no such key.
    Missing,
}

/// One statement of two methods.
const INSERT: &str = "INSERT INTO api_keys (key_id, tenant_id, name, hash, suffix, created_at_ms, expires_at_ms, role, node_id, epoch)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// Tells servers that a key of the tenant changed.
const BUMP: &str = "UPDATE tenants SET revision = revision + 1 WHERE tenant_id = $1";

/// Binds a [`NewKey`] to [`INSERT`].
macro_rules! insert {
    ($key:expr, $node:expr, $epoch:expr) => {
        sqlx::query(INSERT)
            .bind($key.key_id.to_string())
            .bind($key.tenant_id.to_string())
            .bind(&$key.name)
            .bind(&$key.hash)
            .bind(&$key.suffix)
            .bind($key.created_at_ms)
            .bind($key.expires_at_ms)
            .bind(&$key.role)
            .bind($node)
            .bind($epoch)
    };
}

impl Database {
    /// Stores a key.
    ///
    /// # Errors
    /// When the database cannot be written, or the hash or id is there already.
    pub async fn insert_key(&self, key: &NewKey) -> Result<(), DatabaseError> {
        let epoch = self.epoch().await?;
        transaction!(self, |transaction| {
            insert!(key, self.node.as_str(), epoch)
                .execute(&mut *transaction)
                .await?;
            sqlx::query(BUMP)
                .bind(key.tenant_id.to_string())
                .execute(&mut *transaction)
                .await?;
        });
        Ok(())
    }

    /// The key with this hash, valid or not.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn key_by_hash(&self, hash: &str) -> Result<Option<KeyRecord>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM api_keys WHERE hash = $1"
        )
        .bind(hash)
        .fetch_optional(pool)
        .await?))
    }

    /// The key with this id, valid or not.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn key(&self, key: KeyId) -> Result<Option<KeyRecord>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM api_keys WHERE key_id = $1"
        )
        .bind(key.to_string())
        .fetch_optional(pool)
        .await?))
    }

    /// All keys of a tenant, or of all tenants, the oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn keys(&self, tenant: Option<TenantId>) -> Result<Vec<KeyRecord>, DatabaseError> {
        let tenant = tenant.map(|tenant| tenant.to_string());
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM api_keys WHERE tenant_id = COALESCE($1, tenant_id)
             ORDER BY created_at_ms, key_id"
        )
        .bind(&tenant)
        .fetch_all(pool)
        .await?))
    }

    /// Ends a key.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn revoke_key(&self, key: KeyId, now_ms: i64) -> Result<Revoked, DatabaseError> {
        let tenant: Option<String> = transaction!(self, |transaction| {
            let tenant: Option<String> = sqlx::query_scalar(
                "UPDATE api_keys SET revoked_at_ms = $2
                 WHERE key_id = $1 AND revoked_at_ms IS NULL RETURNING tenant_id",
            )
            .bind(key.to_string())
            .bind(now_ms)
            .fetch_optional(&mut *transaction)
            .await?;
            if let Some(tenant) = &tenant {
                sqlx::query(BUMP)
                    .bind(tenant)
                    .execute(&mut *transaction)
                    .await?;
            }
            tenant
        });
        if tenant.is_some() {
            return Ok(Revoked::Now);
        }
        let known = self.key(key).await?;
        Ok(known.map_or(Revoked::Missing, |_| Revoked::Before))
    }

    /// Stores `successor` in the place of `old`, which stays valid for
    /// `grace_ms` at most. Of several rotations of one key one wins.
    ///
    /// # Errors
    /// When the database cannot be written, or the hash or id is there already.
    pub async fn rotate_key(
        &self,
        old: KeyId,
        successor: &NewKey,
        grace_ms: i64,
    ) -> Result<Rotated, DatabaseError> {
        let epoch = self.epoch().await?;
        let now_ms = successor.created_at_ms;
        let old_end_ms = now_ms.saturating_add(grace_ms);
        let end: Option<i64> = transaction!(self, |transaction| {
            let end: Option<i64> = sqlx::query_scalar(
                "UPDATE api_keys SET rotated_to = $3,
                   expires_at_ms = CASE WHEN expires_at_ms < $2 THEN expires_at_ms ELSE $2 END
                 WHERE key_id = $1 AND tenant_id = $5 AND rotated_to IS NULL
                   AND revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > $4)
                 RETURNING expires_at_ms",
            )
            .bind(old.to_string())
            .bind(old_end_ms)
            .bind(successor.key_id.to_string())
            .bind(now_ms)
            .bind(successor.tenant_id.to_string())
            .fetch_optional(&mut *transaction)
            .await?;
            if end.is_some() {
                insert!(successor, self.node.as_str(), epoch)
                    .execute(&mut *transaction)
                    .await?;
                sqlx::query(BUMP)
                    .bind(successor.tenant_id.to_string())
                    .execute(&mut *transaction)
                    .await?;
            }
            end
        });
        if let Some(old_expires_at_ms) = end {
            return Ok(Rotated::Done { old_expires_at_ms });
        }
        let known = self.key(old).await?;
        let is_ours = known.is_some_and(|key| key.tenant_id == successor.tenant_id);
        Ok(if is_ours {
            Rotated::Over
        } else {
            Rotated::Missing
        })
    }

    /// Notes that a key was used, unless that was noted after `unless_since_ms`.
    /// Returns whether it was written.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn touch_key(
        &self,
        key: KeyId,
        now_ms: i64,
        unless_since_ms: i64,
    ) -> Result<bool, DatabaseError> {
        let changed = write!(self, |pool| sqlx::query(
            "UPDATE api_keys SET last_used_at_ms = $2
             WHERE key_id = $1 AND (last_used_at_ms IS NULL OR last_used_at_ms <= $3)"
        )
        .bind(key.to_string())
        .bind(now_ms)
        .bind(unless_since_ms)
        .execute(pool)
        .await?
        .rows_affected());
        Ok(changed > 0)
    }
}
