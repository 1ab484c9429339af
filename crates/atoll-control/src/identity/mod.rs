//! Who is asking, and what is theirs.
//!
//! | file | owns |
//! |---|---|
//! | `secret.rs` | `$ATOLL_HOME/secret`, from which all other keys are derived |
//! | `api_key.rs` | what an API key looks like, its hash and its mask |
//! | `keys.rs` | making, listing, ending and replacing keys; who a key stands for |
//! | `role.rs` | what a key may do |
//! | `caller.rs` | the one who asks, and the sandboxes that are theirs |
//! | `token.rs` | tokens of sandboxes: computed, not stored |
//! | `access.rs` | who may reach which sandbox right now, without a look at the database |
//! | `seal.rs` | what is encrypted at rest |
//!
//! ```text
//! API key ──hash──▶ database ──▶ Caller ──▶ sandboxes of the caller's tenant
//!                                  │
//!                                  └─grant──▶ token of (sandbox, key)
//! token ──MAC──▶ (sandbox, key) ──▶ Access: both alive? ──▶ Pass, with a lifeline
//! ```
//!
//! A key is looked up in the database for every request, so that one made or
//! revoked by another process counts at once. A token is checked against
//! [`Access`], which learns of revocations in its own process as they happen
//! and of those by others within [`REFRESH_INTERVAL`].
//!
//! **Invariant**: a sandbox of another tenant cannot be told from one that
//! never was: every question is asked in the name of a tenant.
//! **Invariant**: secrets are compared as keyed hashes, whose comparison takes
//! the same time whatever differs.

mod access;
mod api_key;
mod caller;
mod keys;
mod role;
mod seal;
mod secret;
mod token;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_store::db::{Database, DatabaseError};

pub use access::{
    Access, Denied, GrantError, KeyLifeline, Lifeline, Over, Pass, REFRESH_INTERVAL, SandboxEnd,
};
pub use api_key::{ApiKey, KeyMask};
pub use caller::{Caller, LookupError};
pub use keys::{
    AuthenticationError, DEFAULT_TENANT, IssueError, IssuedKey, KeyInfo, KeyState, Keys, Refusal,
    RevokeError, RotateError, RotatedKey,
};
pub use role::{InvalidRole, Role};
pub use seal::{SandboxSecrets, SealError, Sealer};
pub use secret::{HomeSecret, SecretError};
pub use token::{EnvdToken, TokenMint};

/// Name under which the database keeps the mark of the secret that its hashes are made with.
const SECRET_MARK: &str = "secret_mark";

/// Everything that takes the secret of a home.
#[derive(Debug, Clone)]
pub struct Identity {
    /// API keys.
    pub keys: Keys,
    /// Encryption at rest.
    pub sealer: Sealer,
    /// Tokens of sandboxes.
    pub mint: TokenMint,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The secret of the home.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Keys in the database were hashed with another secret.
    #[error("the secret of this home is not the one that the keys in the database were made with")]
    OtherSecret,
}

impl IdentityError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Secret(error) => error.hint(),
            Self::Database(error) => error.hint(),
            Self::OtherSecret => Some(
                "put the file `secret` of the home back as it was; nodes that share a database share it",
            ),
        }
    }
}

impl Identity {
    /// Reads the secret of `home`, or makes it, and ties it to the database.
    ///
    /// # Errors
    /// When the secret cannot be used, or is not the one of the database.
    pub async fn open(home: &Path, database: Database) -> Result<Self, IdentityError> {
        let secret = HomeSecret::open(home)?;
        let mark = secret.mark();
        if database.remember(SECRET_MARK, &mark).await? != mark {
            return Err(IdentityError::OtherSecret);
        }
        Ok(Self {
            keys: Keys::new(database, &secret),
            sealer: Sealer::new(&secret),
            mint: TokenMint::new(&secret),
        })
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// Milliseconds of a duration.
fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
