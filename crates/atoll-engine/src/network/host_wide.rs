//! What all sandboxes with a network share on this host: the nft tables and
//! the forwarding switch, with a record of both.
//!
//! ```text
//! ensure:  record "about to, forwarding was off" → table → switch on → record "done"
//! release: switch off, if we switched it on → table → record removed
//! ```
//!
//! The record is written before the first effect and removed after the last,
//! so whatever a crash interrupts, the next call knows how the host was. It
//! counts only for the boot and the network namespace it was written in, each
//! of which has a record of its own. Callers hold the host-wide lock.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::{NetworkError, kernel};
use super::host_network::HostNetwork;
use super::membership::Member;
use super::policy::NetworkPolicy;
use super::slot::SlotRange;
use super::{conntrack, firewall, forwarding, nft, setting, uplink, veth};
use crate::host::file::{make_dir, remove_file, write_state};
use crate::host::process::boot_id;
use crate::host::{HostObject, creates};

/// Records, one for each network namespace that is a host of sandboxes.
const RECORDS: &str = "/run/atoll/networks";

fn record_of(host: HostNetwork) -> PathBuf {
    Path::new(RECORDS).join(format!("{}.json", host.cookie))
}

fn here() -> Result<HostNetwork, NetworkError> {
    HostNetwork::current().map_err(kernel("tell the network namespace of this host"))
}

/// Makes this host ready for sandboxes with a network; quick when it is.
/// If the rules have to be loaded, the sandboxes that `live` are asked for, and made known to
/// them again.
///
/// # Errors
/// When `nft` is missing or refuses, when a setting cannot be written, or
/// when sandboxes of another range are alive.
pub(crate) fn ensure_host(
    range: &SlotRange,
    live: impl FnOnce() -> io::Result<Vec<(u16, NetworkPolicy)>>,
) -> Result<(), NetworkError> {
    HostWide::at(&record_of(here()?)).ensure(range, live)
}

/// Undoes [`ensure_host`]; for when no sandbox with a network is left.
///
/// # Errors
/// When a step fails; the record stays, and the next call tries again.
pub(crate) fn release_host() -> Result<(), NetworkError> {
    HostWide::at(&record_of(here()?)).release()
}

/// Forgets the records of hosts that ended with everything that was in them:
/// those of other boots, and those that are not in `known` and have no process.
///
/// # Errors
/// When the records cannot be listed or removed.
pub(crate) fn forget_dead_hosts(known: &[HostNetwork]) -> io::Result<()> {
    forget_dead(Path::new(RECORDS), known)
}

pub(super) fn forget_dead(records: &Path, known: &[HostNetwork]) -> io::Result<()> {
    let entries = match fs::read_dir(records) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let here = HostNetwork::current()?;
    let boot = boot_id()?;
    for entry in entries {
        let path = entry?.path();
        let Ok(record) = serde_json::from_slice::<Record>(&fs::read(&path)?) else {
            continue; // about to be written, or for its owner to judge
        };
        let other = record.host != here && !known.contains(&record.host);
        if record.boot != boot || other && !record.host.is_inhabited()? {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// How the forwarding switch stood before Atoll came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Switch {
    On,
    Off,
}

/// What was changed, or is about to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The boot it speaks of.
    boot: String,
    /// The network namespace.
    host: HostNetwork,
    /// The slot range the rules are for.
    range: SlotRange,
    /// Fingerprint of the rules, so that another version of Atoll replaces them.
    ruleset: String,
    /// How many rules the kernel holds; absent until everything is done.
    rules: Option<usize>,
    /// How forwarding was before us.
    forwarding_before: Switch,
}

/// The host-wide state and where it is recorded.
pub(super) struct HostWide<'a> {
    record: &'a Path,
}

impl<'a> HostWide<'a> {
    pub(super) fn at(record: &'a Path) -> Self {
        Self { record }
    }

    pub(super) fn ensure(
        &self,
        range: &SlotRange,
        live: impl FnOnce() -> io::Result<Vec<(u16, NetworkPolicy)>>,
    ) -> Result<(), NetworkError> {
        self.ensure_with(range, |ruleset| {
            let live = live().map_err(kernel("list the sandboxes of this host"))?;
            nft::replace_tables(ruleset)?;
            // Every end of a sandbox takes its connections away: say now if that cannot be.
            conntrack::cut_all(Ipv4Addr::UNSPECIFIED)?;
            // Fail closed: who cannot be made known again has no network any more.
            live.iter().try_for_each(|(slot, policy)| {
                Member::of(*slot).join(range.address(*slot)?, policy)
            })
        })
    }

    /// As [`Self::ensure`], with another way to load the rules.
    pub(super) fn ensure_with(
        &self,
        range: &SlotRange,
        load: impl FnOnce(&str) -> Result<(), NetworkError>,
    ) -> Result<(), NetworkError> {
        let ruleset = firewall::ruleset(range);
        let fingerprint = fingerprint(&ruleset);
        let boot = setting::read("kernel/random/boot_id")?;
        let host = here()?;
        let known = self.known(&boot, host)?;
        let forwarding = forwarding::is_on()?;
        if let Some(known) = &known {
            let whole = known.ruleset == fingerprint && known.rules == Some(nft::rule_count()?);
            if whole && forwarding {
                return Ok(());
            }
            if known.range != *range && !veth::live_veths()?.is_empty() {
                return Err(NetworkError::RangeConflict {
                    active: known.range,
                    asked: *range,
                });
            }
        }

        let hidden = uplink::hidden_routes(range)?;
        if !hidden.is_empty() {
            tracing::warn!(
                "the slot range {range} hides addresses of this host's routes: {}",
                hidden.join(", ")
            );
        }
        let forwarding_now = if forwarding { Switch::On } else { Switch::Off };
        let forwarding_before = known.map_or(forwarding_now, |known| known.forwarding_before);
        let mut record = Record {
            boot,
            host,
            range: *range,
            ruleset: fingerprint,
            rules: None,
            forwarding_before,
        };
        self.write(&record)?;
        // The rules first: nothing is ever forwarded unfiltered.
        creates(HostObject::NftTable, || load(&ruleset))?;
        if !forwarding {
            forwarding::switch_on()?;
        }
        record.rules = Some(nft::rule_count()?);
        self.write(&record)
    }

    pub(super) fn release(&self) -> Result<(), NetworkError> {
        let boot = setting::read("kernel/random/boot_id")?;
        let known = self.known(&boot, here()?)?;
        let ours = known
            .as_ref()
            .is_some_and(|known| known.forwarding_before == Switch::Off);
        if ours && forwarding::is_on()? {
            forwarding::switch_off()?;
        }
        if known.is_some() || nft::rule_count()? > 0 {
            nft::remove_tables()?;
        }
        remove_file(self.record).map_err(|error| self.failed("remove", error))
    }

    /// The record of this boot and `host`. One that cannot be understood is as good as
    /// none: then forwarding is left as it stands.
    fn known(&self, boot: &str, host: HostNetwork) -> Result<Option<Record>, NetworkError> {
        let text = match fs::read(self.record) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("read", error)),
        };
        match serde_json::from_slice::<Record>(&text) {
            Ok(record) => {
                Ok(Some(record).filter(|record| record.boot == boot && record.host == host))
            }
            Err(error) => {
                let path = self.record.display();
                tracing::warn!(
                    "`{path}` is not a record of ours, so forwarding stays as it is: {error}"
                );
                Ok(None)
            }
        }
    }

    /// Writes the record whole or not at all. It is named as the table, whose
    /// first trace on this host it is: so the failpoints reach every state
    /// there is (none, intent, rules without forwarding, everything).
    fn write(&self, record: &Record) -> Result<(), NetworkError> {
        let write = || {
            if let Some(parent) = self.record.parent() {
                make_dir(parent, 0o711)?;
            }
            write_state(HostObject::NftTable, self.record, record)
        };
        write().map_err(|error| self.failed("write", error))
    }

    fn failed(&self, verb: &'static str, source: io::Error) -> NetworkError {
        NetworkError::Record {
            verb,
            path: self.record.to_owned(),
            source,
        }
    }
}

fn fingerprint(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
