//! Why a session cannot be used.

use atoll_store::db::DatabaseError;

use crate::executions::{AGENTS_MAX, Attempt};
use crate::identity::SealError;
use crate::lifecycle::{CreateError, OperationError};

/// Why a session cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is none that is the caller's.
    #[error("there is no such session")]
    NotFound,
    /// It belongs to another agent.
    #[error("the session belongs to another agent, which did not let this one in")]
    OtherAgent,
    /// It is over.
    #[error("the session has ended: {0}")]
    Ended(String),
    /// The agent has as many as it may.
    #[error("the agent has {0} sessions, which is the most there may be at once")]
    TooMany(usize),
    /// As many agents as may be were let in.
    #[error("{AGENTS_MAX} agents were let in, which is the most there may be")]
    TooManyAgents,
    /// Its sandbox is there, and cannot be used now.
    #[error("the sandbox of the session is there, and does not take commands: {0}")]
    Asleep(String),
    /// It cannot be like that.
    #[error("{0}")]
    Invalid(String),
    /// Its sandbox cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Its sandbox could not be made, however often it was tried.
    #[error("no sandbox could be made for the session: {message}")]
    Unavailable {
        /// What the last attempt met.
        message: String,
        /// All of them.
        attempts: Vec<Attempt>,
    },
    /// Something about its sandbox.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Its environment cannot be sealed or opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Another server has taken over.
    #[error("this server is not in charge any more")]
    Fenced,
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}
