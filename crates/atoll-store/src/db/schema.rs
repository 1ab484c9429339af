//! The tables, version by version. A version that was released never changes;
//! there is no way back but a backup.
//!
//! All that is missing is applied in one transaction under the lock of the
//! database, so that of several processes that start at once one does it and
//! the others find it done, and a crash leaves the old version or the new.
//! (`sqlx`'s own migrations take no lock on SQLite.)

use sqlx::{PgConnection, PgPool, SqliteConnection, SqlitePool};

use super::DatabaseError;

/// The version that this program writes.
pub const SCHEMA_VERSION: i64 = 8;

/// What leads from one version to the next, beginning with an empty database.
const MIGRATIONS: [&str; 8] = [
    include_str!("migrations/0001_identity.sql"),
    include_str!("migrations/0002_sandboxes.sql"),
    include_str!("migrations/0003_observations.sql"),
    include_str!("migrations/0004_events.sql"),
    include_str!("migrations/0005_services.sql"),
    include_str!("migrations/0006_limits.sql"),
    include_str!("migrations/0007_roles.sql"),
    include_str!("migrations/0008_usage.sql"),
];

/// Marks a SQLite file as ours ("Atol").
pub(super) const APPLICATION_ID: i32 = 0x4174_6f6c;

/// What PostgreSQL's advisory lock is taken on ("Atoll").
const ADVISORY_LOCK: i64 = 0x41_746f_6c6c;

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)";
const READ_VERSION: &str = "SELECT MAX(version) FROM schema_version";
const WRITE_VERSION: &str = "INSERT INTO schema_version (version) VALUES ($1)";

/// Brings a SQLite file to the newest version.
pub(super) async fn migrate_sqlite(writer: &SqlitePool) -> Result<(), DatabaseError> {
    let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
    apply_to_sqlite(&mut transaction).await?;
    Ok(transaction.commit().await?)
}

async fn apply_to_sqlite(connection: &mut SqliteConnection) -> Result<(), DatabaseError> {
    let application_id: i32 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut *connection)
        .await?;
    if application_id != APPLICATION_ID {
        sqlx::raw_sql(SET_APPLICATION_ID)
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query(VERSION_TABLE).execute(&mut *connection).await?;
    let version: Option<i64> = sqlx::query_scalar(READ_VERSION)
        .fetch_one(&mut *connection)
        .await?;
    for (version, script) in missing(version)? {
        sqlx::raw_sql(script).execute(&mut *connection).await?;
        sqlx::query(WRITE_VERSION)
            .bind(version)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// The number is [`APPLICATION_ID`]: a pragma takes no parameters.
const SET_APPLICATION_ID: &str = "PRAGMA application_id = 1098149740";

/// Brings a PostgreSQL database to the newest version.
pub(super) async fn migrate_postgres(pool: &PgPool) -> Result<(), DatabaseError> {
    let mut transaction = pool.begin().await?;
    apply_to_postgres(&mut transaction).await?;
    Ok(transaction.commit().await?)
}

async fn apply_to_postgres(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(ADVISORY_LOCK)
        .execute(&mut *connection)
        .await?;
    refuse_foreign_tables(&mut *connection).await?;
    sqlx::query(VERSION_TABLE).execute(&mut *connection).await?;
    let version: Option<i64> = sqlx::query_scalar(READ_VERSION)
        .fetch_one(&mut *connection)
        .await?;
    for (version, script) in missing(version)? {
        sqlx::raw_sql(script).execute(&mut *connection).await?;
        sqlx::query(WRITE_VERSION)
            .bind(version)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// PostgreSQL has no mark for files: tables without ours beside them are somebody else's.
async fn refuse_foreign_tables(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    let (name, tables, ours): (String, i64, i64) = sqlx::query_as(
        "SELECT current_database()::text, COUNT(*),
                COUNT(*) FILTER (WHERE tablename = 'schema_version')
         FROM pg_tables WHERE schemaname = current_schema()",
    )
    .fetch_one(connection)
    .await?;
    if tables > 0 && ours == 0 {
        return Err(DatabaseError::Foreign(format!("`{name}`")));
    }
    Ok(())
}

/// The steps from `version` on, each with the version it leads to.
fn missing(
    version: Option<i64>,
) -> Result<impl Iterator<Item = (i64, &'static str)>, DatabaseError> {
    let found = version.unwrap_or(0);
    if found > SCHEMA_VERSION {
        return Err(DatabaseError::Newer {
            found,
            known: SCHEMA_VERSION,
        });
    }
    Ok((1..)
        .zip(MIGRATIONS)
        .skip_while(move |(version, _)| *version <= found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_that_is_set_is_the_one_that_is_looked_for() {
        assert!(SET_APPLICATION_ID.ends_with(&format!(" {APPLICATION_ID}")));
    }

    #[test]
    fn only_what_is_missing_is_applied() {
        let versions = |version| -> Vec<i64> {
            missing(version)
                .unwrap()
                .map(|(version, _)| version)
                .collect()
        };
        assert_eq!(versions(None), (1..=SCHEMA_VERSION).collect::<Vec<_>>());
        assert_eq!(versions(Some(SCHEMA_VERSION - 1)), [SCHEMA_VERSION]);
        assert!(versions(Some(SCHEMA_VERSION)).is_empty());
        assert!(missing(Some(SCHEMA_VERSION + 1)).is_err());
    }
}
