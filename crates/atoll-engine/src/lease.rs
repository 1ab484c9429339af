//! Leases of what is host-wide: a slot stands for a uid range, a cgroup, an
//! interface name and an address, and belongs to one process of one home.
//!
//! A slot is a directory below `/run/atoll/slots` with a `lease.json` in it.
//! It is taken and claimed only under the lock of `/run/atoll`, before
//! anything else of the sandbox exists, and given back after everything else
//! is gone. So whatever a crash leaves, a lease whose owner is dead leads to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{RUN_DIR, slot_dir};
use crate::host::file::{self, make_dir, remove_tree, write_state};
use crate::host::process::ProcessIdentity;
use crate::host::{HostObject, creates};
use crate::{NetworkMode, SandboxId, SandboxSpec, Tier};

/// First uid of slot 0: above `/etc/subuid` ranges and above what systemd gives to containers.
const UID_FLOOR: u32 = 0x7000_0000;
const UIDS_PER_SLOT: u32 = 0x1_0000;
/// Slots on one host, so that every uid stays below 2^31.
const SLOTS: u16 = 4096;

/// What a slot is used for and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) slot: u16,
    pub(crate) owner: ProcessIdentity,
    pub(crate) home: PathBuf,
    pub(crate) sandbox: SandboxId,
    pub(crate) network: NetworkMode,
    #[serde(default)]
    pub(crate) tier: Tier,
    /// Layers the sandbox stands on; they must not be removed below it.
    #[serde(default)]
    pub(crate) layers: Vec<PathBuf>,
}

impl Lease {
    /// First uid and gid on the host of this slot's sandbox.
    pub(crate) fn uid_base(&self) -> u32 {
        UID_FLOOR + u32::from(self.slot) * UIDS_PER_SLOT
    }

    pub(crate) fn dir(&self) -> PathBuf {
        slot_dir(self.slot)
    }
}

/// The host-wide lock; held while leases change hands.
pub(crate) struct HostLock {
    _lock: file::FileLock,
}

impl HostLock {
    /// Waits for the lock.
    pub(crate) fn take() -> io::Result<Self> {
        make_dir(Path::new(RUN_DIR), 0o711)?;
        make_dir(&Path::new(RUN_DIR).join("slots"), 0o711)?;
        Ok(Self {
            _lock: file::lock(&Path::new(RUN_DIR).join("lock"))?,
        })
    }

    /// Takes the lowest free slot for the sandbox of `spec` in the home at `home`.
    pub(crate) fn lease(&self, home: &Path, tier: Tier, spec: &SandboxSpec) -> io::Result<Lease> {
        let owner = ProcessIdentity::current()?;
        let free = (0..SLOTS).find(|slot| !slot_dir(*slot).exists());
        let slot = free.ok_or_else(|| {
            io::Error::other(format!("all {SLOTS} sandbox slots of this host are in use"))
        })?;
        let lease = Lease {
            slot,
            owner,
            home: home.to_owned(),
            sandbox: spec.id.clone(),
            network: spec.network,
            tier,
            layers: spec.layers.clone(),
        };
        creates(HostObject::SlotDirectory, || make_dir(&lease.dir(), 0o711))?;
        self.write(&lease)?;
        Ok(lease)
    }

    fn write(&self, lease: &Lease) -> io::Result<()> {
        write_state(HostObject::Lease, &lease.dir().join("lease.json"), lease)
    }

    /// Gives a slot back. Everything else it stood for must be gone.
    pub(crate) fn release(&self, lease: &Lease) -> io::Result<()> {
        // The lease goes last: a crash half-way leaves a slot that still says what it was.
        for entry in fs::read_dir(lease.dir())?.flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|name| name != "lease.json") {
                if entry.file_type()?.is_dir() {
                    remove_tree(&path)?;
                } else {
                    file::remove_file(&path)?;
                }
            }
        }
        remove_tree(&lease.dir())
    }

    /// Leases whose owner is dead, now owned by this process. Slots that
    /// never got a lease are removed at once: nothing was made for them.
    pub(crate) fn claim_dead(&self) -> io::Result<Vec<Lease>> {
        let mut claimed = Vec::new();
        for slot in self.slots()? {
            match read(slot) {
                Ok(lease) if lease.owner.is_alive() => {}
                Ok(lease) => {
                    let lease = Lease {
                        owner: ProcessIdentity::current()?,
                        ..lease
                    };
                    self.write(&lease)?;
                    claimed.push(lease);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    remove_tree(&slot_dir(slot))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(claimed)
    }

    /// Every lease on this host.
    pub(crate) fn leases(&self) -> io::Result<Vec<Lease>> {
        self.slots()?
            .into_iter()
            .filter_map(|slot| match read(slot) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                other => Some(other),
            })
            .collect()
    }

    #[expect(
        clippy::unused_self,
        reason = "the slots may only be listed while the lock is held"
    )]
    fn slots(&self) -> io::Result<Vec<u16>> {
        let mut slots = Vec::new();
        for entry in fs::read_dir(Path::new(RUN_DIR).join("slots"))? {
            if let Some(slot) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            {
                slots.push(slot);
            }
        }
        slots.sort_unstable();
        Ok(slots)
    }
}

fn read(slot: u16) -> io::Result<Lease> {
    let path = slot_dir(slot).join("lease.json");
    let text = fs::read(&path)?;
    serde_json::from_slice(&text).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {error}", path.display()),
        )
    })
}

const _: () = assert!(UID_FLOOR as u64 + SLOTS as u64 * UIDS_PER_SLOT as u64 <= 1 << 31);
