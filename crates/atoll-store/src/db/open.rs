//! Finding, checking and opening a database.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::events::EventBell;
use super::schema::{APPLICATION_ID, migrate_postgres, migrate_sqlite};
use super::{Connections, Database, DatabaseError, NodeId, read};

/// The database of a home that names no other.
const FILE: &str = "atoll.db";

/// How long a statement waits for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two tries to be the only one who opens a file.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How long to wait for a connection, which includes reaching a server.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections that read a SQLite file.
const READERS: u32 = 4;

/// Connections to a PostgreSQL server.
const POSTGRES_CONNECTIONS: u32 = 16;

/// Where a database is.
#[derive(Debug, Clone)]
pub enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// A PostgreSQL server.
    Server(Box<PgConnectOptions>),
}

impl Location {
    /// The SQLite file of a home.
    #[must_use]
    pub fn of_home(home: &Path) -> Self {
        Self::File(home.join(FILE))
    }
}

impl FromStr for Location {
    type Err = DatabaseError;

    /// A path, `sqlite:PATH`, `postgres://…` or `postgresql://…`.
    fn from_str(text: &str) -> Result<Self, DatabaseError> {
        // Errors never repeat the text of a URL: it may hold a password.
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        match scheme {
            "postgres" | "postgresql" => text
                .parse::<PgConnectOptions>()
                .map(|options| Self::Server(Box::new(options.disable_statement_logging())))
                .map_err(|_| DatabaseError::Location(format!("{scheme}:…"))),
            "sqlite" => {
                let path = text.trim_start_matches("sqlite:");
                Self::file(path.strip_prefix("//").unwrap_or(path))
            }
            "" => Self::file(text),
            other if text.starts_with(&format!("{other}://")) => {
                Err(DatabaseError::Location(format!("{other}://…")))
            }
            _ => Self::file(text),
        }
    }
}

impl Location {
    fn file(path: &str) -> Result<Self, DatabaseError> {
        if path.is_empty() {
            return Err(DatabaseError::Location(path.to_owned()));
        }
        Ok(Self::File(path.into()))
    }
}

impl Database {
    /// Opens the database at `location`, making or updating its tables, in the
    /// name of `node`.
    ///
    /// # Errors
    /// When it cannot be reached, is damaged, belongs to something else, or
    /// was written by a newer Atoll; it is then left as it was.
    pub async fn open(location: &Location, node: NodeId) -> Result<Self, DatabaseError> {
        let connections = match location {
            Location::File(path) => open_file(path).await?,
            Location::Server(options) => {
                let pool = PgPoolOptions::new()
                    .max_connections(POSTGRES_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_with(options.as_ref().clone())
                    .await?;
                migrate_postgres(&pool).await?;
                Connections::Postgres(pool)
            }
        };
        Ok(Self {
            connections,
            node,
            event_bell: EventBell::new(),
        })
    }

    /// Reads the whole of a SQLite file and looks for damage; a PostgreSQL
    /// server does that itself.
    ///
    /// # Errors
    /// When there is damage, or the file cannot be read.
    pub async fn check(&self) -> Result<(), DatabaseError> {
        if let Connections::Sqlite { readers, .. } = &self.connections {
            let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)")
                .fetch_one(readers)
                .await?;
            if verdict != "ok" {
                return Err(DatabaseError::Damaged(verdict));
            }
        }
        Ok(())
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        let _: i64 = read!(self, |pool| sqlx::query_scalar(
            "SELECT CAST(COUNT(*) AS BIGINT) FROM nodes"
        )
        .fetch_one(pool)
        .await?);
        Ok(())
    }
}

async fn open_file(path: &Path) -> Result<Connections, DatabaseError> {
    let _alone = alone(path).await?;
    prepare(path).await?;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .after_release(|connection, _| Box::pin(is_usable(connection)))
        .connect_with(options.clone())
        .await?;
    migrate_sqlite(&writer).await?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // The mode is a property of the file, and this one may not write.
        .connect_lazy_with(options.read_only(true));
    Ok(Connections::Sqlite { writer, readers })
}

/// Whether a connection can be used again. On a full disk SQLite takes a transaction
/// back by itself; `sqlx` then waits for ever to do the same, and nobody would write
/// any more. Such a connection is closed, and the next writer gets a new one.
async fn is_usable(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    if !connection.is_in_transaction() {
        return Ok(true);
    }
    // What was not committed is being taken back: this comes after it.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

/// Keeps other processes from opening the database at `path` meanwhile: while
/// one changes the mode of the file, SQLite tells others at once that it is
/// locked, however long they would wait.
///
/// The lock is on the directory, because closing the file itself would give
/// up all locks that SQLite holds on it in this process.
async fn alone(path: &Path) -> Result<File, DatabaseError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = File::open(directory).map_err(|source| unusable(path, source))?;
    let lock = async {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN) => tokio::time::sleep(LOCK_PAUSE).await,
                other => return other,
            }
        }
    };
    match tokio::time::timeout(BUSY_TIMEOUT, lock).await {
        Ok(Ok(())) => Ok(file),
        Ok(Err(errno)) => Err(unusable(path, errno.into())),
        Err(_) => Err(unusable(path, io::ErrorKind::WouldBlock.into())),
    }
}

/// Makes a new file that only its owner reads, or refuses one that is not ours.
async fn prepare(path: &Path) -> Result<(), DatabaseError> {
    let made = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match made {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(unusable(path, source)),
    }
    let metadata = fs::metadata(path).map_err(|source| unusable(path, source))?;
    if metadata.len() == 0 {
        return Ok(()); // a crash between making the file and its tables
    }
    recognise(path).await
}

/// Looks at a file without changing it.
async fn recognise(path: &Path) -> Result<(), DatabaseError> {
    match look(path).await {
        Ok((APPLICATION_ID, _) | (0, 0)) => Ok(()),
        Ok(_) => Err(DatabaseError::Foreign(format!("`{}`", path.display()))),
        Err(DatabaseError::Damaged(_)) if !has_magic(path) => {
            Err(DatabaseError::NotADatabase(path.to_owned()))
        }
        Err(error) => Err(error),
    }
}

/// The mark of a file, and how many tables it has.
async fn look(path: &Path) -> Result<(i32, i64), DatabaseError> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
        .connect()
        .await?;
    let application_id: i32 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut connection)
        .await?;
    let tables: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM sqlite_schema")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok((application_id, tables))
}

/// Whether the file begins as SQLite's files do.
fn has_magic(path: &Path) -> bool {
    use std::io::Read as _;
    let mut start = [0_u8; 16];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok_and(|()| &start == b"SQLite format 3\0")
}

fn unusable(path: &Path, source: io::Error) -> DatabaseError {
    DatabaseError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_or_urls() {
        for (text, expected) in [
            ("/var/lib/a.db", "/var/lib/a.db"),
            ("a.db", "a.db"),
            ("sqlite:a.db", "a.db"),
            ("sqlite:///var/a.db", "/var/a.db"),
            ("odd:name", "odd:name"),
        ] {
            let Ok(Location::File(path)) = text.parse() else {
                panic!("{text}");
            };
            assert_eq!(path, Path::new(expected));
        }
        for text in ["postgres://atoll@db/atoll", "postgresql:///atoll?host=/run"] {
            assert!(matches!(text.parse(), Ok(Location::Server(_))), "{text}");
        }
    }

    #[test]
    fn what_names_no_database_is_refused_without_repeating_a_password() {
        for text in [
            "",
            "sqlite:",
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2@h:x/d",
        ] {
            let error = text.parse::<Location>().unwrap_err();
            assert!(matches!(error, DatabaseError::Location(_)), "{text}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
