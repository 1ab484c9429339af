//! Why an operation on sandboxes was not done.

use atoll_engine::{SandboxError, Tier};
use atoll_store::db::{ChangeError, DatabaseError, Lost};

use super::{Full, InvalidTemplateReference, InvalidTraffic, InvalidWish};
use crate::OpenError;
use crate::identity::{GrantError, LookupError, SealError};
use crate::service::ServiceError;
use crate::templates::CatalogError;

/// Why no sandbox was made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The reference names no template.
    #[error(transparent)]
    TemplateReference(#[from] InvalidTemplateReference),
    /// There is no such template.
    #[error("template '{0}' not found")]
    NoTemplate(String),
    /// It is a built-in template that nobody has built here.
    #[error(
        "template '{0}' is not built on this server yet; its operator builds it once, with `atoll template build {0}`"
    )]
    NotBuilt(String),
    /// There is such a template, without that tag.
    #[error("tag '{tag}' of template '{name}' not found")]
    NoTag {
        /// The template.
        name: String,
        /// What it lacks.
        tag: String,
    },
    /// Something that was asked for cannot be.
    #[error(transparent)]
    Wish(#[from] InvalidWish),
    /// What it should reach cannot be.
    #[error(transparent)]
    Traffic(#[from] InvalidTraffic),
    /// The tenant has as many as it may.
    #[error("you have reached the maximum number of concurrent sandboxes ({0})")]
    TooMany(usize),
    /// The host has no room for it.
    #[error(transparent)]
    Full(#[from] Full),
    /// The same request is being answered.
    #[error("a sandbox is being made for this idempotency key")]
    InProgress,
    /// The same request was answered, and what it made has ended.
    #[error("the sandbox that was made for this idempotency key has ended")]
    Ended,
    /// The idempotency key was used for something else.
    #[error("this idempotency key was used for another request")]
    OtherRequest,
    /// Templates cannot be read.
    #[error("cannot use the template")]
    Catalog(#[from] CatalogError),
    /// Something that was asked for cannot be had in this tier or on this host.
    #[error("{what}; {hint}")]
    Refused {
        /// What cannot be had, and why.
        what: String,
        /// What to ask for instead.
        hint: String,
    },
    /// The host could not make it.
    #[error("cannot make the sandbox")]
    Open(OpenError),
    /// What the template wants to run does not run.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// It was made and is gone.
    #[error("the sandbox ended while it was being made")]
    Lost(#[from] SandboxError),
    /// Secrets cannot be stored.
    #[error("cannot seal the secrets of the sandbox")]
    Seal(#[from] SealError),
    /// Another server has taken over.
    #[error("this server is not in charge any more")]
    Fenced,
    /// The key that asked is over.
    #[error("the key has been revoked or has expired")]
    KeyOver,
    /// The server is going down.
    #[error("the server is being stopped")]
    Stopping,
    /// The kernel.
    #[error("the host did not do what it was asked")]
    Host(#[from] std::io::Error),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl CreateError {
    /// What the operator of the host can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Open(OpenError::Create(atoll_engine::CreateError::Host { hint, .. })) => {
                hint.as_deref()
            }
            Self::Database(error) => error.hint(),
            _ => None,
        }
    }
}

impl From<OpenError> for CreateError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Create(atoll_engine::CreateError::Refused { what, hint }) => {
                Self::Refused { what, hint }
            }
            error => Self::Open(error),
        }
    }
}

impl From<atoll_store::db::CreateError> for CreateError {
    fn from(error: atoll_store::db::CreateError) -> Self {
        match error {
            atoll_store::db::CreateError::Lost(_) => Self::Fenced,
            atoll_store::db::CreateError::Database(error) => Self::Database(error),
        }
    }
}

impl From<ChangeError> for CreateError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Lost(_) => Self::Fenced,
            ChangeError::Database(error) => Self::Database(error),
        }
    }
}

impl From<GrantError> for CreateError {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::NotFound => Self::KeyOver,
            GrantError::Database(error) => Self::Database(error),
        }
    }
}

/// Why nothing was done with a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// There is none of that name that is the caller's and runs.
    #[error("there is no such sandbox")]
    NotFound,
    /// It is paused.
    #[error("the sandbox is paused")]
    Paused,
    /// It runs.
    #[error("the sandbox is already running")]
    Running,
    /// Its tier keeps files and memory together.
    #[error("the {0} tier cannot keep the files of a sandbox without its memory")]
    FilesOnly(Tier),
    /// Its guest does not answer, and that was asked for.
    #[error("the guest of the sandbox does not answer")]
    GuestUnresponsive,
    /// It has lived as long as it may.
    #[error("Max instance length exceeded")]
    LifetimeOver,
    /// Something that was asked for cannot be.
    #[error(transparent)]
    Wish(#[from] InvalidWish),
    /// What it should reach cannot be.
    #[error(transparent)]
    Traffic(#[from] InvalidTraffic),
    /// The host has no room for it now.
    #[error(transparent)]
    Full(#[from] Full),
    /// The host refused.
    #[error("the host did not do what it was asked: {0}")]
    Failed(String),
    /// Another server has taken over.
    #[error("this server is not in charge any more")]
    Fenced,
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<LookupError> for OperationError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::NotFound => Self::NotFound,
            LookupError::Database(error) => Self::Database(error),
        }
    }
}

impl From<GrantError> for OperationError {
    fn from(error: GrantError) -> Self {
        match error {
            GrantError::NotFound => Self::NotFound,
            GrantError::Database(error) => Self::Database(error),
        }
    }
}

impl From<ChangeError> for OperationError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Lost(Lost::Missing | Lost::Changed { .. }) => Self::NotFound,
            ChangeError::Lost(Lost::Fenced { .. }) => Self::Fenced,
            ChangeError::Database(error) => Self::Database(error),
        }
    }
}

impl From<SandboxError> for OperationError {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::Gone => Self::NotFound,
            other => Self::Failed(other.to_string()),
        }
    }
}
