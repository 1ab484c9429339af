//! What can go wrong with a database as such, and what to do about it.

use std::path::PathBuf;

/// The database cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The text names no database.
    #[error("`{0}` names no database: expected a path, or `postgres://…`")]
    Location(String),
    /// The file is something else.
    #[error("`{}` is not a SQLite database", .0.display())]
    NotADatabase(PathBuf),
    /// The database has tables of somebody else.
    #[error("{0} is a database, but not one of Atoll")]
    Foreign(String),
    /// The file was damaged.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// A later version of Atoll has been here.
    #[error(
        "the database has version {found} and was written by a newer Atoll: this one knows versions up to {known}"
    )]
    Newer {
        /// Version of the database.
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// Something in a row is not what this program writes.
    #[error("the database holds a {what} that makes no sense: `{found}`")]
    Content {
        /// What it should be.
        what: &'static str,
        /// What is there.
        found: String,
    },
    /// A file around the database.
    #[error("cannot use `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The database refused, or cannot be reached.
    #[error("the database did not do what it was asked")]
    Query(#[source] sqlx::Error),
}

/// SQLite's code for a file that somebody else has locked.
const BUSY: &str = "5";

/// SQLite's codes for a damaged file, and for a file that is none of its own.
const DAMAGED: &str = "11";
const NOT_A_DATABASE: &str = "26";

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        let primary = code.as_deref().map(primary_code);
        match primary.as_deref() {
            Some(DAMAGED | NOT_A_DATABASE) => Self::Damaged(error.to_string()),
            _ => Self::Query(error),
        }
    }
}

/// SQLite's code without the part that says where it happened. PostgreSQL's have five characters.
fn primary_code(code: &str) -> String {
    match code.parse::<u32>() {
        Ok(number) if code.len() < 5 => (number & 0xff).to_string(),
        _ => code.to_owned(),
    }
}

impl DatabaseError {
    /// Whether another process was in the way, and may not be the next time.
    pub(super) fn is_busy(&self) -> bool {
        let Self::Query(error) = self else {
            return false;
        };
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        code.is_some_and(|code| primary_code(&code) == BUSY)
    }

    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Location(_) => {
                "leave it out to use the home's own, or give `postgres://USER@HOST/DATABASE`"
            }
            Self::NotADatabase(_) => {
                "move that file away, or set ATOLL_HOME to another directory; nothing was changed"
            }
            Self::Foreign(_) => "choose a database that nothing else uses; nothing was changed",
            Self::Damaged(_) => {
                "stop the server and restore the database (with its `-wal` file) from a backup"
            }
            Self::Newer { .. } => {
                "use the newer Atoll, or a backup from before the update; nothing was changed"
            }
            Self::Query(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Tls(_)) => {
                "check that the database server runs and that its address is right"
            }
            Self::Content { .. } | Self::File { .. } | Self::Query(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lose_where_it_happened() {
        assert_eq!(primary_code("267"), DAMAGED); // SQLITE_CORRUPT_VTAB
        assert_eq!(primary_code("26"), NOT_A_DATABASE);
        assert_eq!(primary_code("42601"), "42601");
        assert_eq!(primary_code("08P01"), "08P01");
    }
}
