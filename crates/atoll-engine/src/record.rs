//! What is known of each sandbox of a home, also after its end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::disk::space_of;
use crate::host::HostObject;
use crate::host::file::{make_dir, remove_file, write_state};
use crate::{Limits, NetworkPolicy, NetworkUsage, Outcome, SandboxId, Tier};

/// One sandbox as written to `<home>/sandboxes/<id>.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// Its name.
    pub id: SandboxId,
    /// How it is kept apart.
    pub tier: Tier,
    /// Its upper bounds.
    pub limits: Limits,
    /// What it can reach.
    pub network: NetworkPolicy,
    /// Milliseconds since 1970 at which it was created.
    pub created_ms: u64,
    /// How and when it ended; `None` while it runs.
    pub ended: Option<Ended>,
}

/// The end of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Why.
    pub outcome: Outcome,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// What it sent, got and was denied; `None` without a network.
    #[serde(default)]
    pub network: Option<NetworkUsage>,
}

/// The records of one home.
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    pub(crate) fn write(&self, record: &SandboxRecord) -> io::Result<()> {
        make_dir(&self.dir, 0o700)?;
        write_state(HostObject::SandboxRecord, &self.path(&record.id), record)
    }

    /// What is known of `id`.
    pub(crate) fn get(&self, id: &SandboxId) -> io::Result<Option<SandboxRecord>> {
        match self.read(&self.path(id)) {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes the end of `id`, unless it was noted before. A sandbox that never got a record needs none.
    pub(crate) fn end(
        &self,
        id: &SandboxId,
        outcome: &Outcome,
        network: Option<NetworkUsage>,
    ) -> io::Result<()> {
        match self.get(id)? {
            Some(mut record) if record.ended.is_none() => {
                remove_file(&self.path(id).with_extension("new"))?;
                record.ended = Some(Ended {
                    outcome: outcome.clone(),
                    at_ms: now_ms(),
                    network,
                });
                self.write(&record)
            }
            _ => Ok(()),
        }
    }

    /// Notes what `id` can reach from now on.
    pub(crate) fn change_network(&self, id: &SandboxId, policy: &NetworkPolicy) -> io::Result<()> {
        match self.get(id)? {
            Some(record) => self.write(&SandboxRecord {
                network: policy.clone(),
                ..record
            }),
            None => Ok(()),
        }
    }

    fn read(&self, path: &Path) -> io::Result<SandboxRecord> {
        serde_json::from_slice(&fs::read(path)?).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {error}", path.display()),
            )
        })
    }

    /// All of them, the oldest first.
    pub(crate) fn list(&self) -> io::Result<Vec<SandboxRecord>> {
        let mut records = Vec::new();
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
            other => other?,
        };
        for entry in entries {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                match self.read(&path) {
                    Ok(record) => records.push(record),
                    // Cut short by a power failure; it tells nothing any more.
                    Err(error) => {
                        tracing::warn!("a record is set aside: {error}");
                        let _ = fs::remove_file(&path);
                    }
                }
            }
        }
        records.sort_by_key(|record| record.created_ms);
        Ok(records)
    }

    /// Sandboxes that ended longer than `age` ago.
    pub(crate) fn older_than(&self, age: Duration) -> io::Result<Vec<SandboxRecord>> {
        let limit = now_ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let mut records = self.list()?;
        records.retain(|record| {
            record
                .ended
                .as_ref()
                .is_some_and(|ended| ended.at_ms <= limit)
        });
        Ok(records)
    }

    /// Forgets a sandbox.
    pub(crate) fn forget(&self, id: &SandboxId) -> io::Result<()> {
        remove_file(&self.path(id))
    }

    /// Space that the record of a sandbox takes.
    pub(crate) fn bytes_of(&self, id: &SandboxId) -> u64 {
        space_of(&self.path(id))
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}
