//! Tenants: what everything else belongs to.

use super::{Database, DatabaseError, TenantId, read, transaction};

/// A tenant ("team" in E2B's words).
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Tenant {
    /// Its id.
    #[sqlx(try_from = "String")]
    pub tenant_id: TenantId,
    /// Its name, unique in the database.
    pub name: String,
    /// When it was made.
    pub created_at_ms: i64,
    /// Grows with every change of one of its keys.
    pub revision: i64,
}

impl Database {
    /// The tenant with this name, made if there is none; of several callers at
    /// once all get the same.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn ensure_tenant(&self, name: &str, now_ms: i64) -> Result<Tenant, DatabaseError> {
        let epoch = self.epoch().await?;
        Ok(transaction!(self, |transaction| {
            sqlx::query(
                "INSERT INTO tenants (tenant_id, name, created_at_ms, revision, node_id, epoch)
                 VALUES ($1, $2, $3, 0, $4, $5)
                 ON CONFLICT (name) DO NOTHING",
            )
            .bind(TenantId::random().to_string())
            .bind(name)
            .bind(now_ms)
            .bind(self.node.as_str())
            .bind(epoch)
            .execute(&mut *transaction)
            .await?;
            sqlx::query_as("SELECT * FROM tenants WHERE name = $1")
                .bind(name)
                .fetch_one(&mut *transaction)
                .await?
        }))
    }

    /// The tenant with this name.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn tenant_by_name(&self, name: &str) -> Result<Option<Tenant>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM tenants WHERE name = $1"
        )
        .bind(name)
        .fetch_optional(pool)
        .await?))
    }

    /// All tenants, by name.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_as(
            "SELECT * FROM tenants ORDER BY name"
        )
        .fetch_all(pool)
        .await?))
    }

    /// A number that changes whenever a key of any tenant does.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn keys_revision(&self) -> Result<i64, DatabaseError> {
        Ok(read!(self, |pool| sqlx::query_scalar(
            "SELECT CAST(COALESCE(SUM(revision), 0) AS BIGINT) FROM tenants"
        )
        .fetch_one(pool)
        .await?))
    }
}
