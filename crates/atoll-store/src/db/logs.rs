//! Logs of sandboxes, the newest entries of each.

use std::fmt;

use super::state::words;
use super::{ChangeError, Database, DatabaseError, Fence, TenantId, read, transaction};

/// Entries kept per sandbox.
pub const LOG_ENTRIES_KEPT: i64 = 2000;

/// Longest message; of a longer one the rest is counted and not kept.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

words! {
    /// How much an entry matters.
    LogLevel, "level of a log entry", {
        /// For those who look for a mistake.
        Debug => "debug",
        /// Normal.
        Info => "info",
        /// Something to look at.
        Warn => "warn",
        /// Something failed.
        Error => "error",
    }
}

/// An entry to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLogEntry {
    /// When it happened.
    pub at_ms: i64,
    /// How much it matters.
    pub level: LogLevel,
    /// What happened.
    pub message: String,
    /// JSON: an object with more.
    pub fields: String,
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct LogEntry {
    /// Its number in the log of its sandbox, from 1.
    pub sequence: i64,
    /// When it happened.
    pub at_ms: i64,
    /// How much it matters.
    #[sqlx(try_from = "String")]
    pub level: LogLevel,
    /// What happened.
    pub message: String,
    /// JSON: an object with more.
    pub fields: String,
}

/// From which end a log is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// The oldest entry first, from a moment on.
    #[default]
    Forward,
    /// The newest entry first, from a moment back.
    Backward,
}

/// Which entries to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Where to begin, inclusive; none is the end that the direction begins at.
    pub from_ms: Option<i64>,
    /// Which come first.
    pub direction: Direction,
    /// Only entries that matter at least as much.
    pub level: Option<LogLevel>,
    /// Only entries whose message contains this.
    pub search: Option<String>,
    /// How many at most.
    pub limit: usize,
}

impl LogQuery {
    fn wants(&self, entry: &LogEntry) -> bool {
        self.level.is_none_or(|level| entry.level >= level)
            && self
                .search
                .as_deref()
                .is_none_or(|text| entry.message.contains(text))
    }
}

const FORWARD: &str = "SELECT * FROM sandbox_logs
     WHERE sandbox_id = $1 AND tenant_id = $2 AND at_ms >= $3 ORDER BY sequence";

const BACKWARD: &str = "SELECT * FROM sandbox_logs
     WHERE sandbox_id = $1 AND tenant_id = $2 AND at_ms <= $3 ORDER BY sequence DESC";

impl Database {
    /// Appends entries to the log of a live sandbox and drops its oldest ones
    /// beyond [`LOG_ENTRIES_KEPT`].
    ///
    /// # Errors
    /// [`Lost`](super::Lost) when the sandbox is gone or `fence` is not the newest of its node.
    pub async fn append_logs(
        &self,
        fence: &Fence,
        sandbox: &str,
        entries: &[NewLogEntry],
    ) -> Result<(), ChangeError> {
        let count = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        let appended: Option<()> = transaction!(self, |transaction| {
            // The counter of the sandbox is also what several writers wait for.
            let last: Option<(i64, String)> = sqlx::query_as(
                "UPDATE sandboxes SET log_sequence = log_sequence + $4
                 WHERE sandbox_id = $1 AND node_id = $2
                   AND EXISTS (SELECT 1 FROM nodes WHERE node_id = $2 AND epoch = $3)
                 RETURNING log_sequence, tenant_id",
            )
            .bind(sandbox)
            .bind(fence.node.as_str())
            .bind(fence.epoch)
            .bind(count)
            .fetch_optional(&mut *transaction)
            .await?;
            match last {
                None => None,
                Some((last, tenant)) => {
                    for (sequence, entry) in (last - count + 1..).zip(entries) {
                        sqlx::query(
                            "INSERT INTO sandbox_logs (sandbox_id, sequence, tenant_id, at_ms, level, message, fields, node_id, epoch)
                             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                        )
                        .bind(sandbox)
                        .bind(sequence)
                        .bind(&tenant)
                        .bind(entry.at_ms)
                        .bind(entry.level.as_str())
                        .bind(bounded(&entry.message))
                        .bind(&entry.fields)
                        .bind(fence.node.as_str())
                        .bind(fence.epoch)
                        .execute(&mut *transaction)
                        .await?;
                    }
                    sqlx::query(
                        "DELETE FROM sandbox_logs WHERE sandbox_id = $1 AND sequence <= $2",
                    )
                    .bind(sandbox)
                    .bind(last - LOG_ENTRIES_KEPT)
                    .execute(&mut *transaction)
                    .await?;
                    Some(())
                }
            }
        });
        match appended {
            Some(()) => Ok(()),
            None => Err(self.loss(fence, sandbox).await?.into()),
        }
    }

    /// Entries of the log of a sandbox of `tenant`, live or gone.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn logs(
        &self,
        tenant: TenantId,
        sandbox: &str,
        query: &LogQuery,
    ) -> Result<Vec<LogEntry>, DatabaseError> {
        let (statement, edge) = match query.direction {
            Direction::Forward => (FORWARD, i64::MIN),
            Direction::Backward => (BACKWARD, i64::MAX),
        };
        let entries: Vec<LogEntry> = read!(self, |pool| sqlx::query_as(statement)
            .bind(sandbox)
            .bind(tenant.to_string())
            .bind(query.from_ms.unwrap_or(edge))
            .fetch_all(pool)
            .await?);
        let wanted = entries.into_iter().filter(|entry| query.wants(entry));
        Ok(wanted.take(query.limit).collect())
    }
}

/// The message, or its beginning and how much more there was.
fn bounded(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES_MAX {
        // PostgreSQL's texts cannot hold this character.
        return message.replace('\0', "\u{fffd}");
    }
    let end = (0..=MESSAGE_BYTES_MAX)
        .rev()
        .find(|end| message.is_char_boundary(*end))
        .unwrap_or(0);
    let more = message.len() - end;
    format!("{} [{more} bytes more]", bounded(&message[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_say_how_much_is_missing() {
        assert_eq!(bounded("fine"), "fine");
        assert_eq!(bounded("a\0b"), "a\u{fffd}b");
        let long = "ä".repeat(MESSAGE_BYTES_MAX);
        let kept = bounded(&long);
        assert!(kept.ends_with("ä [8192 bytes more]"), "{kept}");
    }
}
