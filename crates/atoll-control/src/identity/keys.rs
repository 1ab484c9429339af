//! API keys: making, listing, ending and replacing them, and finding out for
//! whom a key stands.

use std::collections::HashMap;
use std::time::Duration;

use atoll_store::db::{
    Database, DatabaseError, KeyId, KeyRecord, NewKey, Revoked, Rotated, Tenant, TenantId,
};
use serde::Serialize;

use super::api_key::KeyHasher;
use super::secret::HomeSecret;
use super::{ApiKey, Caller, KeyMask, Role, millis, now_ms};

/// The tenant of keys that name no other.
pub const DEFAULT_TENANT: &str = "default";

/// How often the use of a key is written, at most.
const LAST_USE_RESOLUTION_MS: i64 = 60_000;

/// Longest name of a key or tenant.
const NAME_LEN_MAX: usize = 64;

/// API keys of a database.
#[derive(Debug, Clone)]
pub struct Keys {
    database: Database,
    hasher: KeyHasher,
}

/// Whether a key opens anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// It does.
    Active,
    /// Its time is over.
    Expired,
    /// It was ended.
    Revoked,
}

/// What may be known of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyInfo {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// Id of the tenant it stands for.
    pub tenant_id: TenantId,
    /// Name of that tenant.
    pub tenant: String,
    /// What it may do.
    pub role: String,
    /// What may be shown of the key.
    pub mask: KeyMask,
    /// Whether it opens anything.
    pub state: KeyState,
    /// When it was made.
    pub created_at_ms: i64,
    /// When it ends by itself.
    pub expires_at_ms: Option<i64>,
    /// When it was last used, to the minute.
    pub last_used_at_ms: Option<i64>,
}

/// A key that was just made.
#[derive(Debug)]
pub struct IssuedKey {
    /// The key. Nobody can read it again.
    pub key: ApiKey,
    /// What is known of it.
    pub info: KeyInfo,
}

/// A key that took another's place.
#[derive(Debug)]
pub struct RotatedKey {
    /// The new key.
    pub issued: IssuedKey,
    /// When the old one ends.
    pub old_expires_at_ms: i64,
}

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The name cannot be used.
    #[error(
        "`{0}` cannot be the name of a key: expected 1 to {NAME_LEN_MAX} characters that can be printed"
    )]
    KeyName(String),
    /// The name of the tenant cannot be used.
    #[error(
        "`{0}` cannot be the name of a tenant: expected 1 to {NAME_LEN_MAX} characters of a-z, 0-9, `-` and `_`"
    )]
    TenantName(String),
    /// No randomness.
    #[error("the kernel gives no random bytes")]
    Random(#[source] std::io::Error),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Why a key was not ended.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// There is none.
    #[error("there is no such key")]
    NotFound,
    /// It was ended before.
    #[error("the key was revoked before")]
    Already,
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Why a key was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// There is none.
    #[error("there is no such key")]
    NotFound,
    /// It was replaced, ended or over before.
    #[error("the key was rotated or revoked before, or has expired")]
    Over,
    /// The new one could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl From<DatabaseError> for RotateError {
    fn from(error: DatabaseError) -> Self {
        Self::Issue(error.into())
    }
}

/// Why a text does not stand for anybody. For logs: a client is told the same in all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It does not have the form of a key.
    Malformed,
    /// No such key was made.
    Unknown,
    /// The key was ended.
    Revoked,
    /// Its time is over.
    Expired,
    /// It has a role that nobody knows.
    Role,
}

/// Why a caller is not known.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// What was presented opens nothing.
    #[error("the API key is not valid")]
    Refused(Refusal),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Keys {
    pub(super) fn new(database: Database, secret: &HomeSecret) -> Self {
        Self {
            database,
            hasher: KeyHasher::new(secret),
        }
    }

    /// Makes an operator's key of `tenant`, which is made too if there is none
    /// of that name.
    ///
    /// # Errors
    /// When a name cannot be used or the database cannot be written.
    pub async fn create(
        &self,
        name: &str,
        tenant: &str,
        lifetime: Option<Duration>,
    ) -> Result<IssuedKey, IssueError> {
        self.create_for(name, tenant, Role::Operator, lifetime)
            .await
    }

    /// The same with another role.
    ///
    /// # Errors
    /// When a name cannot be used or the database cannot be written.
    pub async fn create_for(
        &self,
        name: &str,
        tenant: &str,
        role: Role,
        lifetime: Option<Duration>,
    ) -> Result<IssuedKey, IssueError> {
        check_key_name(name)?;
        check_tenant_name(tenant)?;
        let now_ms = now_ms();
        let tenant = self.database.ensure_tenant(tenant, now_ms).await?;
        let (key, new) = self.fresh(name, tenant.tenant_id, role.as_str(), (lifetime, now_ms))?;
        self.database.insert_key(&new).await?;
        let info = info(stored(new), tenant.name, now_ms);
        Ok(IssuedKey { key, info })
    }

    /// All keys of a tenant, or of all tenants, the oldest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn list(&self, tenant: Option<TenantId>) -> Result<Vec<KeyInfo>, DatabaseError> {
        let now_ms = now_ms();
        let names: HashMap<TenantId, String> = self
            .database
            .tenants()
            .await?
            .into_iter()
            .map(|tenant| (tenant.tenant_id, tenant.name))
            .collect();
        let keys = self.database.keys(tenant).await?;
        let named = keys.into_iter().map(|key| {
            let tenant = names.get(&key.tenant_id).cloned().unwrap_or_default();
            info(key, tenant, now_ms)
        });
        Ok(named.collect())
    }

    /// The tenant with this name.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn tenant(&self, name: &str) -> Result<Option<Tenant>, DatabaseError> {
        self.database.tenant_by_name(name).await
    }

    /// Ends a key now. A server that holds its tokens is told through
    /// [`Access::revoke`](super::Access::revoke); another process's finds out.
    ///
    /// # Errors
    /// When there is no such key, or it was ended before.
    pub async fn revoke(&self, key: KeyId) -> Result<(), RevokeError> {
        match self.database.revoke_key(key, now_ms()).await? {
            Revoked::Now => Ok(()),
            Revoked::Before => Err(RevokeError::Already),
            Revoked::Missing => Err(RevokeError::NotFound),
        }
    }

    /// Makes a key in the place of `old`, with its name, its tenant and its role. The
    /// old one works for `grace` longer, or until it would have ended anyway.
    /// The new one lives as long as the old one was meant to, from now on.
    ///
    /// # Errors
    /// When there is no such key, or it is over already.
    pub async fn rotate(&self, old: KeyId, grace: Duration) -> Result<RotatedKey, RotateError> {
        let now_ms = now_ms();
        let record = self.database.key(old).await?.ok_or(RotateError::NotFound)?;
        let lifetime = record.expires_at_ms.map(|end| {
            let lived = end.saturating_sub(record.created_at_ms);
            Duration::from_millis(u64::try_from(lived).unwrap_or(0))
        });
        let (key, new) = self.fresh(
            &record.name,
            record.tenant_id,
            &record.role,
            (lifetime, now_ms),
        )?;
        match self.database.rotate_key(old, &new, millis(grace)).await? {
            Rotated::Missing => Err(RotateError::NotFound),
            Rotated::Over => Err(RotateError::Over),
            Rotated::Done { old_expires_at_ms } => {
                let tenants = self.database.tenants().await?;
                let tenant = tenants
                    .into_iter()
                    .find(|tenant| tenant.tenant_id == new.tenant_id)
                    .map(|tenant| tenant.name)
                    .unwrap_or_default();
                Ok(RotatedKey {
                    issued: IssuedKey {
                        key,
                        info: info(stored(new), tenant, now_ms),
                    },
                    old_expires_at_ms,
                })
            }
        }
    }

    /// For whom `text` stands.
    ///
    /// # Errors
    /// When it is not a valid key.
    pub async fn authenticate(&self, text: &str) -> Result<Caller, AuthenticationError> {
        self.authenticate_at(text, now_ms()).await
    }

    async fn authenticate_at(
        &self,
        text: &str,
        now_ms: i64,
    ) -> Result<Caller, AuthenticationError> {
        let refused = |why| Err(AuthenticationError::Refused(why));
        let Some(key) = ApiKey::parse(text) else {
            return refused(Refusal::Malformed);
        };
        let hash = self.hasher.hash(&key);
        let found = self.database.key_by_hash(hash.to_hex().as_str()).await?;
        // The database compared hashes that nobody can choose; this comparison
        // takes the same time whatever it finds.
        let found = found.filter(|record| {
            blake3::Hash::from_hex(&record.hash).is_ok_and(|stored| stored == hash)
        });
        let Some(record) = found else {
            return refused(Refusal::Unknown);
        };
        match state(&record, now_ms) {
            KeyState::Active => {}
            KeyState::Expired => return refused(Refusal::Expired),
            KeyState::Revoked => return refused(Refusal::Revoked),
        }
        // A role that only a later version knows is none.
        let Ok(role) = record.role.parse() else {
            return refused(Refusal::Role);
        };
        self.note_use(&record, now_ms).await;
        Ok(Caller {
            role,
            tenant: record.tenant_id,
            key: record.key_id,
            agent_id: None,
            task_id: None,
        })
    }

    /// Writes when a key was used, unless that was done within the minute. Who
    /// holds a valid key is not turned away because this fails.
    async fn note_use(&self, record: &KeyRecord, now_ms: i64) {
        let unless_since_ms = now_ms - LAST_USE_RESOLUTION_MS;
        if record
            .last_used_at_ms
            .is_some_and(|used| used > unless_since_ms)
        {
            return;
        }
        let touched = self
            .database
            .touch_key(record.key_id, now_ms, unless_since_ms)
            .await;
        if let Err(error) = touched {
            tracing::warn!("cannot note that key {} was used: {error}", record.key_id);
        }
    }

    fn fresh(
        &self,
        name: &str,
        tenant_id: TenantId,
        role: &str,
        (lifetime, now_ms): (Option<Duration>, i64),
    ) -> Result<(ApiKey, NewKey), IssueError> {
        let key = ApiKey::random().map_err(IssueError::Random)?;
        let new = NewKey {
            key_id: KeyId::random(),
            tenant_id,
            name: name.to_owned(),
            role: role.to_owned(),
            hash: self.hasher.hash(&key).to_hex().to_string(),
            suffix: key.mask().suffix,
            created_at_ms: now_ms,
            expires_at_ms: lifetime.map(|lifetime| now_ms.saturating_add(millis(lifetime))),
        };
        Ok((key, new))
    }
}

fn check_key_name(name: &str) -> Result<(), IssueError> {
    let length = name.chars().count();
    let is_valid = (1..=NAME_LEN_MAX).contains(&length)
        && !name.chars().any(char::is_control)
        && name.trim() == name;
    if is_valid {
        return Ok(());
    }
    let shown = name.chars().filter(|character| !character.is_control());
    Err(IssueError::KeyName(shown.take(NAME_LEN_MAX).collect()))
}

/// What E2B's clients accept as the namespace of a template.
fn check_tenant_name(name: &str) -> Result<(), IssueError> {
    let is_valid = (1..=NAME_LEN_MAX).contains(&name.len())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
        });
    if is_valid {
        return Ok(());
    }
    let shown = name.chars().filter(|character| !character.is_control());
    Err(IssueError::TenantName(shown.take(NAME_LEN_MAX).collect()))
}

fn state(record: &KeyRecord, now_ms: i64) -> KeyState {
    if record.revoked_at_ms.is_some() {
        KeyState::Revoked
    } else if record.is_valid(now_ms) {
        KeyState::Active
    } else {
        KeyState::Expired
    }
}

fn info(record: KeyRecord, tenant: String, now_ms: i64) -> KeyInfo {
    KeyInfo {
        id: record.key_id,
        state: state(&record, now_ms),
        name: record.name,
        tenant_id: record.tenant_id,
        tenant,
        role: record.role,
        mask: KeyMask::new(&record.suffix),
        created_at_ms: record.created_at_ms,
        expires_at_ms: record.expires_at_ms,
        last_used_at_ms: record.last_used_at_ms,
    }
}

/// The row that a new key becomes.
fn stored(new: NewKey) -> KeyRecord {
    KeyRecord {
        key_id: new.key_id,
        tenant_id: new.tenant_id,
        name: new.name,
        role: new.role,
        hash: new.hash,
        suffix: new.suffix,
        created_at_ms: new.created_at_ms,
        expires_at_ms: new.expires_at_ms,
        last_used_at_ms: None,
        revoked_at_ms: None,
        rotated_to: None,
    }
}

#[cfg(test)]
mod tests;
