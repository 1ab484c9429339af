//! Who may reach which sandbox right now.
//!
//! The server asks this for every request that comes with a token, so the
//! answer comes from memory. What is in memory is kept true from two sides:
//! the server says when a sandbox ends or a key is revoked by its own hand, and
//! [`refresh`](Access::refresh) finds what other processes did to keys. Whoever
//! was let in holds a [`Lifeline`] and is told when it breaks.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_engine::SandboxId;
use atoll_store::db::{Database, DatabaseError, KeyId, KeyRecord, TenantId};
use tokio::sync::watch;

use super::{Caller, EnvdToken, TokenMint, now_ms};

/// How long a revocation by another process stays unnoticed, at most.
pub const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

/// Longest sleep until a key expires: the host's clock may be set meanwhile.
const EXPIRY_LOOK: Duration = Duration::from_secs(30);

/// What opens nothing. A client is told no more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token is not valid for this sandbox")]
pub struct Denied;

/// Why a caller gets no token.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The sandbox is gone or foreign, or the key is over.
    #[error("there is no such sandbox")]
    NotFound,
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Why somebody who was let in has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The key was revoked.
    KeyRevoked,
    /// The time of the key is over.
    KeyExpired,
    /// The sandbox has ended, or holds still.
    SandboxEnded,
}

/// How it stands with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    ValidUntil(Option<i64>),
    Revoked,
}

impl Standing {
    fn of(record: &KeyRecord) -> Self {
        match record.revoked_at_ms {
            Some(_) => Self::Revoked,
            None => Self::ValidUntil(record.expires_at_ms),
        }
    }

    fn over(self, now_ms: i64) -> Option<Over> {
        match self {
            Self::Revoked => Some(Over::KeyRevoked),
            Self::ValidUntil(Some(end)) if now_ms >= end => Some(Over::KeyExpired),
            Self::ValidUntil(_) => None,
        }
    }
}

/// Who may reach which sandbox right now.
#[derive(Debug)]
pub struct Access {
    database: Database,
    mint: TokenMint,
    known: Mutex<Known>,
    /// What those hold who wait for no sandbox.
    no_sandbox: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Known {
    keys: HashMap<KeyId, watch::Sender<Standing>>,
    sandboxes: HashMap<SandboxId, Reachable>,
    /// Number of the state of all keys that `keys` was read at.
    revision: i64,
}

/// A live sandbox, and the keys that hold a token for it.
#[derive(Debug)]
struct Reachable {
    tenant: TenantId,
    keys: BTreeSet<KeyId>,
    ended: watch::Sender<bool>,
}

/// Somebody who was let in.
#[derive(Debug, Clone)]
pub struct Pass {
    /// Whose sandbox it is.
    pub tenant: TenantId,
    /// The key that the token was made for.
    pub key: KeyId,
    /// Breaks when the holder has to go.
    pub lifeline: Lifeline,
}

/// Tells when the right to be there ends.
#[derive(Debug, Clone)]
pub struct Lifeline {
    key: watch::Receiver<Standing>,
    ended: watch::Receiver<bool>,
}

/// Tells when a key is over.
#[derive(Debug, Clone)]
pub struct KeyLifeline(Lifeline);

impl KeyLifeline {
    /// Waits until the key is over, and says why.
    pub async fn broken(self) -> Over {
        self.0.broken().await
    }
}

/// Tells when a sandbox ends.
#[derive(Debug, Clone)]
pub struct SandboxEnd {
    ended: watch::Receiver<bool>,
}

impl SandboxEnd {
    /// Waits until the sandbox has ended.
    pub async fn reached(mut self) {
        // An error says that nobody can end it any more: it is gone.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}

impl Lifeline {
    /// Waits until the sandbox has ended or the key is over, and says which.
    pub async fn broken(mut self) -> Over {
        loop {
            if *self.ended.borrow_and_update() {
                return Over::SandboxEnded;
            }
            let standing = *self.key.borrow_and_update();
            let now_ms = now_ms();
            if let Some(over) = standing.over(now_ms) {
                return over;
            }
            let look = match standing {
                Standing::ValidUntil(Some(end)) => {
                    let left = u64::try_from(end.saturating_sub(now_ms)).unwrap_or(0);
                    EXPIRY_LOOK.min(Duration::from_millis(left))
                }
                Standing::ValidUntil(None) | Standing::Revoked => EXPIRY_LOOK,
            };
            tokio::select! {
                changed = self.ended.changed() => if changed.is_err() { return Over::SandboxEnded },
                changed = self.key.changed() => if changed.is_err() { return Over::KeyRevoked },
                () = tokio::time::sleep(look) => {}
            }
        }
    }
}

impl Access {
    /// Takes up what a server before this one knew: all tokens for live
    /// sandboxes of this node.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn load(database: Database, mint: TokenMint) -> Result<Self, DatabaseError> {
        let sandboxes = database.sandboxes_of_node(database.node()).await?;
        let tokens = database.tokens_of_node(database.node()).await?;
        let access = Self {
            database,
            mint,
            known: Mutex::new(Known {
                revision: -1,
                ..Known::default()
            }),
            no_sandbox: watch::Sender::new(false),
        };
        access.refresh().await?;
        for sandbox in sandboxes {
            // A row with another form of id was not written by a server.
            if let Ok(id) = sandbox.sandbox_id.parse() {
                access.begin_sandbox(id, sandbox.tenant_id);
            }
        }
        for token in tokens {
            if let Ok(sandbox) = token.sandbox_id.parse() {
                access.lock().admit(&sandbox, token.tenant_id, token.key_id);
            }
        }
        Ok(access)
    }

    /// Makes a sandbox reachable, for those who are granted a token. Only the
    /// life cycle of a sandbox begins and ends it here, so that no token
    /// outlives it.
    pub fn begin_sandbox(&self, sandbox: SandboxId, tenant: TenantId) {
        self.lock()
            .sandboxes
            .entry(sandbox)
            .or_insert_with(|| Reachable {
                tenant,
                keys: BTreeSet::new(),
                ended: watch::Sender::new(false),
            });
    }

    /// The token of `sandbox` for `caller`, the same however often it is asked for.
    ///
    /// # Errors
    /// The same for a foreign sandbox and a missing one.
    pub async fn grant(
        &self,
        caller: &Caller,
        sandbox: &SandboxId,
    ) -> Result<EnvdToken, GrantError> {
        let (key, now_ms) = (caller.key, now_ms());
        // Who holds one already gets the same again, without a write.
        let held = self.lock().pass(sandbox, key, now_ms);
        if held.is_some_and(|pass| pass.tenant == caller.tenant) {
            return Ok(self.mint.token(sandbox, key));
        }
        let is_allowed = self
            .database
            .record_token(sandbox.as_str(), key, now_ms)
            .await?;
        if !is_allowed {
            return Err(GrantError::NotFound);
        }
        let standing = self.standing(key).await?;
        let current = *standing.borrow();
        let mut known = self.lock();
        if current.over(now_ms).is_some() || !known.admit(sandbox, caller.tenant, key) {
            return Err(GrantError::NotFound);
        }
        Ok(self.mint.token(sandbox, key))
    }

    /// Tells when `key` is over, for those who have something open in its name
    /// that is no sandbox's.
    ///
    /// # Errors
    /// When there is no such key, or it is over already.
    pub async fn lifeline_of(&self, key: KeyId) -> Result<KeyLifeline, GrantError> {
        let standing = self.standing(key).await?;
        if standing.borrow().over(now_ms()).is_some() {
            return Err(GrantError::NotFound);
        }
        Ok(KeyLifeline(Lifeline {
            key: standing,
            ended: self.no_sandbox.subscribe(),
        }))
    }

    /// How it stands with a key, from now on.
    async fn standing(&self, key: KeyId) -> Result<watch::Receiver<Standing>, GrantError> {
        let record = self.database.key(key).await?;
        let standing = record.as_ref().map(Standing::of);
        let standing = standing.ok_or(GrantError::NotFound)?;
        // What is known already may be newer than what was just read.
        let mut known = self.lock();
        let sender = known
            .keys
            .entry(key)
            .or_insert_with(|| watch::Sender::new(standing));
        Ok(sender.subscribe())
    }

    /// Lets the holder of a token in.
    ///
    /// # Errors
    /// When the token is not one of this sandbox, or its key or sandbox is over.
    pub fn verify(&self, sandbox: &SandboxId, token: &str) -> Result<Pass, Denied> {
        let key = self.mint.key_of(sandbox, token).ok_or(Denied)?;
        self.lock().pass(sandbox, key, now_ms()).ok_or(Denied)
    }

    /// The sandbox whose token `is_signer` recognises, for signed URLs that
    /// name no sandbox. All tokens that open anything are tried.
    pub fn find(&self, is_signer: impl Fn(&str) -> bool) -> Option<(SandboxId, Pass)> {
        let all = self.lock().holders();
        // Without the lock: anybody may ask, and it takes a hash per token.
        let (sandbox, key) = all
            .into_iter()
            .find(|(sandbox, key)| is_signer(self.mint.token(sandbox, *key).reveal()))?;
        let pass = self.lock().pass(&sandbox, key, now_ms())?;
        Some((sandbox, pass))
    }

    /// As [`find`](Self::find), among the tokens of one sandbox.
    pub fn find_in(&self, sandbox: &SandboxId, is_signer: impl Fn(&str) -> bool) -> Option<Pass> {
        let keys = self.lock().sandboxes.get(sandbox)?.keys.clone();
        let key = keys
            .into_iter()
            .find(|key| is_signer(self.mint.token(sandbox, *key).reveal()))?;
        self.lock().pass(sandbox, key, now_ms())
    }

    /// Tells when a sandbox ends, for those who came without a token.
    pub fn end_of(&self, sandbox: &SandboxId) -> Option<SandboxEnd> {
        let ended = self.lock().sandboxes.get(sandbox)?.ended.subscribe();
        Some(SandboxEnd { ended })
    }

    /// Ends whatever is open to a sandbox. Its tokens stay: they open it again
    /// when it is back.
    pub fn break_off(&self, sandbox: &SandboxId) {
        if let Some(reachable) = self.lock().sandboxes.get_mut(sandbox) {
            let before = std::mem::replace(&mut reachable.ended, watch::Sender::new(false));
            before.send_replace(true);
        }
    }

    /// Ends every token of a sandbox, and whatever its holders have open.
    pub fn end_sandbox(&self, sandbox: &SandboxId) {
        if let Some(reachable) = self.lock().sandboxes.remove(sandbox) {
            reachable.ended.send_replace(true);
        }
    }

    /// Ends every token of a key, and whatever its holder has open. The key
    /// itself is revoked by [`Keys::revoke`](super::Keys::revoke), before.
    pub fn revoke(&self, key: KeyId) {
        self.lock().set(key, Standing::Revoked);
    }

    /// Looks whether any process changed a key, and if so, what became of each.
    ///
    /// # Errors
    /// When the database cannot be read; what is known stays as it was.
    pub async fn refresh(&self) -> Result<(), DatabaseError> {
        // Read first: a change after it is seen the next time.
        let revision = self.database.keys_revision().await?;
        if self.lock().revision == revision {
            return Ok(());
        }
        let keys = self.database.keys(None).await?;
        let mut known = self.lock();
        for record in &keys {
            known.set(record.key_id, Standing::of(record));
        }
        known.revision = revision;
        Ok(())
    }

    /// Refreshes every [`REFRESH_INTERVAL`], for ever: a task of the server.
    pub async fn keep_fresh(&self) {
        let mut was_readable = true;
        loop {
            let refreshed = self.refresh().await;
            if let (Err(error), true) = (&refreshed, was_readable) {
                tracing::warn!("revocations by other processes go unnoticed: {error}");
            }
            was_readable = refreshed.is_ok();
            tokio::time::sleep(REFRESH_INTERVAL).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change is a single step, so a panic elsewhere leaves it whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Adds a key to those that may reach a sandbox; whether there is such a sandbox.
    fn admit(&mut self, sandbox: &SandboxId, tenant: TenantId, key: KeyId) -> bool {
        let reachable = self.sandboxes.get_mut(sandbox);
        let reachable = reachable.filter(|reachable| reachable.tenant == tenant);
        reachable
            .map(|reachable| reachable.keys.insert(key))
            .is_some()
    }

    /// A revoked key stays revoked: what was read before may arrive after.
    fn set(&mut self, key: KeyId, standing: Standing) {
        let sender = self
            .keys
            .entry(key)
            .or_insert_with(|| watch::Sender::new(standing));
        sender.send_if_modified(|current| {
            let is_news = *current != Standing::Revoked && *current != standing;
            if is_news {
                *current = standing;
            }
            is_news
        });
    }

    /// Who holds a token for what.
    fn holders(&self) -> Vec<(SandboxId, KeyId)> {
        let each = self.sandboxes.iter();
        each.flat_map(|(sandbox, reachable)| {
            let keys = reachable.keys.iter();
            keys.map(|key| (sandbox.clone(), *key))
        })
        .collect()
    }

    fn pass(&self, sandbox: &SandboxId, key: KeyId, now_ms: i64) -> Option<Pass> {
        let reachable = self.sandboxes.get(sandbox)?;
        let standing = self.keys.get(&key)?;
        let is_valid = reachable.keys.contains(&key) && standing.borrow().over(now_ms).is_none();
        is_valid.then(|| Pass {
            tenant: reachable.tenant,
            key,
            lifeline: Lifeline {
                key: standing.subscribe(),
                ended: reachable.ended.subscribe(),
            },
        })
    }
}

#[cfg(test)]
mod tests;
