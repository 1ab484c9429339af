//! Single values that are written once.

use super::{Database, DatabaseError, transaction};

impl Database {
    /// Stores `value` under `name` unless there is one, and returns the one that is there.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub async fn remember(&self, name: &str, value: &str) -> Result<String, DatabaseError> {
        let epoch = self.epoch().await?;
        Ok(transaction!(self, |transaction| {
            sqlx::query(
                "INSERT INTO settings (name, value, node_id, epoch) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (name) DO NOTHING",
            )
            .bind(name)
            .bind(value)
            .bind(self.node.as_str())
            .bind(epoch)
            .execute(&mut *transaction)
            .await?;
            sqlx::query_scalar("SELECT value FROM settings WHERE name = $1")
                .bind(name)
                .fetch_one(&mut *transaction)
                .await?
        }))
    }
}
