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
use crate::network::HostNetwork;
use crate::{Attachment, NetworkPolicy, SandboxId, SandboxSpec, SlotRange, Tier};

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
    /// What belongs to it on the network; `None` without an interface.
    pub(crate) network: Option<LeasedNetwork>,
    #[serde(default)]
    pub(crate) tier: Tier,
    /// Whether it may live without a client.
    #[serde(default = "bound_to_its_client")]
    pub(crate) attachment: Attachment,
    /// Layers the sandbox stands on; they must not be removed below it.
    #[serde(default)]
    pub(crate) layers: Vec<PathBuf>,
}

/// Leases written before there was a choice.
fn bound_to_its_client() -> Attachment {
    Attachment::Client
}

/// The network side of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeasedNetwork {
    /// The network namespace that plays the host; only there its interface and rules are found.
    pub(crate) host: HostNetwork,
    /// Where its address comes from.
    pub(crate) range: SlotRange,
    /// What it may reach now.
    pub(crate) policy: NetworkPolicy,
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

    /// Takes a slot for the sandbox of `spec` in the home at `home`, whose
    /// address on this host would come from `range`.
    ///
    /// Slots are taken in turn, not the lowest first: what is still on its way
    /// to an address when its sandbox ends meets nobody for a long time.
    pub(crate) fn lease(
        &self,
        home: &Path,
        tier: Tier,
        spec: &SandboxSpec,
        range: &SlotRange,
    ) -> io::Result<Lease> {
        let owner = ProcessIdentity::current()?;
        let network = if spec.network.has_interface() {
            Some(LeasedNetwork {
                host: HostNetwork::current()?,
                range: *range,
                policy: spec.network.clone(),
            })
        } else {
            None
        };
        // A small range has no address for most slots.
        let slots = match &network {
            Some(_) => u16::try_from(range.slots()).map_or(SLOTS, |slots| slots.min(SLOTS)),
            None => SLOTS,
        };
        let last = self.last_slot();
        let free = in_turn(last, slots).find(|slot| !slot_dir(*slot).exists());
        let slot = free.ok_or_else(|| {
            io::Error::other(format!("all {slots} sandbox slots of this host are in use"))
        })?;
        write_state(HostObject::SlotCursor, &cursor_path(), &slot)?;
        let lease = Lease {
            slot,
            owner,
            home: home.to_owned(),
            sandbox: spec.id.clone(),
            network,
            tier,
            attachment: spec.attachment,
            layers: spec.layers.clone(),
        };
        creates(HostObject::SlotDirectory, || make_dir(&lease.dir(), 0o711))?;
        self.write(&lease)?;
        Ok(lease)
    }

    /// Writes down what changed of a lease that this process holds.
    pub(crate) fn update(&self, lease: &Lease) -> io::Result<()> {
        self.write(lease)
    }

    /// The slot taken last; none when that is not known.
    #[expect(
        clippy::unused_self,
        reason = "the note may only be read while the lock is held"
    )]
    fn last_slot(&self) -> Option<u16> {
        let text = fs::read(cursor_path()).ok()?;
        serde_json::from_slice(&text).ok()
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

    /// Leases whose owner is dead, now owned by this process, each with the
    /// owner it had. Slots that never got a lease are removed at once: nothing
    /// was made for them.
    pub(crate) fn claim_dead(&self) -> io::Result<Vec<(Lease, ProcessIdentity)>> {
        let mut dead = Vec::new();
        for slot in self.slots()? {
            match read(slot) {
                Ok(lease) if lease.owner.is_alive() => {}
                Ok(lease) => dead.push(lease),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    remove_tree(&slot_dir(slot))?;
                }
                Err(error) => return Err(error),
            }
        }
        // Only when all could be read: nobody would hear of what was claimed.
        let owner = ProcessIdentity::current()?;
        let mut claimed = Vec::with_capacity(dead.len());
        for lease in dead {
            let (mine, owner) = (owner.clone(), lease.owner.clone());
            let lease = Lease {
                owner: mine,
                ..lease
            };
            match self.write(&lease) {
                Ok(()) => claimed.push((lease, owner)),
                // A full disk: those before it are released, and make room.
                Err(error) if claimed.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(claimed)
    }

    /// Gives a claimed lease back to its dead owner, so that anybody may claim
    /// it again: this process may live long and not try again itself.
    pub(crate) fn give_up(&self, claimed: &Lease, dead: &ProcessIdentity) -> io::Result<()> {
        match read(claimed.slot) {
            Ok(lease) if lease.sandbox == claimed.sandbox => self.write(&Lease {
                owner: dead.clone(),
                ..lease
            }),
            // It was given back after all.
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Every lease on this host.
    pub(crate) fn leases(&self) -> io::Result<Vec<Lease>> {
        self.each_lease()?.collect()
    }

    /// Whether there is one of which `wanted` is true. Among hundreds, the first
    /// that is read mostly tells.
    pub(crate) fn has_lease(&self, wanted: impl Fn(&Lease) -> bool) -> io::Result<bool> {
        for lease in self.each_lease()? {
            if wanted(&lease?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn each_lease(&self) -> io::Result<impl Iterator<Item = io::Result<Lease>>> {
        let slots = self.slots()?.into_iter();
        Ok(slots.filter_map(|slot| match read(slot) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other),
        }))
    }

    /// The other sandboxes that live on the same network as `lease`, and what they may reach.
    pub(crate) fn live_networks(&self, lease: &Lease) -> io::Result<Vec<(u16, NetworkPolicy)>> {
        let host = lease.network.as_ref().map(|network| network.host);
        let others = self
            .leases()?
            .into_iter()
            .filter(|other| other.slot != lease.slot && other.owner.is_alive());
        Ok(others
            .filter_map(|other| Some((other.slot, other.network?)))
            .filter(|(_, network)| Some(network.host) == host)
            .map(|(slot, network)| (slot, network.policy))
            .collect())
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

/// All slots below `slots`, those after `last` first.
fn in_turn(last: Option<u16>, slots: u16) -> impl Iterator<Item = u16> {
    let next = last.map_or(0, |last| last.saturating_add(1)).min(slots);
    (next..slots).chain(0..next)
}

fn cursor_path() -> PathBuf {
    Path::new(RUN_DIR).join("last-slot.json")
}

fn read(slot: u16) -> io::Result<Lease> {
    let path = slot_dir(slot).join("lease.json");
    let text = fs::read(&path)?;
    serde_json::from_slice(&text).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: {error}; was it written by another version of Atoll, whose sandboxes are still there?", path.display()),
        )
    })
}

const _: () = assert!(UID_FLOOR as u64 + SLOTS as u64 * UIDS_PER_SLOT as u64 <= 1 << 31);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_in_turn_and_each_once_around() {
        let turn = |last, slots| in_turn(last, slots).collect::<Vec<_>>();
        assert_eq!(turn(None, 4), [0, 1, 2, 3]);
        assert_eq!(turn(Some(1), 4), [2, 3, 0, 1]);
        assert_eq!(turn(Some(3), 4), [0, 1, 2, 3]);
        assert_eq!(turn(Some(u16::MAX), 2), [0, 1]);
    }
}
