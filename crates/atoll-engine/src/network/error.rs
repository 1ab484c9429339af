//! What can go wrong with a sandbox's network, and what to do about it.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::slot::SlotRange;
use crate::CreateError;

/// Why a network could not be made, checked or taken away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// The kernel refused a step.
    #[error("cannot {what}")]
    Kernel {
        /// The step, as it would follow "cannot".
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A kernel setting could not be read or written.
    #[error("cannot {verb} the kernel setting `{path}`")]
    Setting {
        /// `read` or `write`.
        verb: &'static str,
        /// Its path below `/proc/sys`.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The thread that makes a namespace ended without an answer.
    #[error("the thread that makes the network namespace {0}")]
    NamespaceThread(&'static str),
    /// A slot that the range has no addresses for.
    #[error("slot {slot} has no addresses: the range {range} holds {slots} slots")]
    SlotOutOfRange {
        /// The slot.
        slot: u16,
        /// The range.
        range: SlotRange,
        /// How many slots it holds.
        slots: u32,
    },
    /// An interface has one of our names but is no veth.
    #[error(
        "the interface `{0}` is not a veth pair, so Atoll did not make it and does not touch it"
    )]
    ForeignInterface(String),
    /// Port 53 of a gateway address could not be taken.
    #[error("cannot listen for DNS queries on {address} port 53 ({protocol})")]
    DnsPort {
        /// The gateway address.
        address: Ipv4Addr,
        /// `udp` or `tcp`.
        protocol: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A sandbox was to get a network while nothing filters it.
    #[error("the nft tables `atoll` are not loaded: a sandbox with a network would be unfiltered")]
    FirewallAbsent,
    /// Sandboxes of another range are alive.
    #[error("sandboxes of this host live in {active}, so {asked} cannot be used now")]
    RangeConflict {
        /// The range in use.
        active: SlotRange,
        /// The range asked for.
        asked: SlotRange,
    },
    /// The `nft` program is not there.
    #[error("the program `nft` is not installed: nothing could filter the traffic of sandboxes")]
    NftMissing,
    /// `nft` ran and refused.
    #[error("`nft` could not {what}: {detail}")]
    NftRefused {
        /// The step, as it would follow "could not".
        what: &'static str,
        /// Its own words.
        detail: String,
    },
    /// The record of what was changed on the host could not be read or written.
    #[error("cannot {verb} the record of host-wide network changes `{path}`")]
    Record {
        /// `read`, `write` or `remove`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl NetworkError {
    /// What the operator can do about it.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NftMissing => Some("install it: `apt-get install nftables`"),
            Self::NftRefused { .. } => Some(
                "the kernel needs nf_tables with NAT, fib and ARP support (CONFIG_NFT_NAT, CONFIG_NFT_FIB_INET, CONFIG_NF_TABLES_ARP)",
            ),
            Self::DnsPort { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(
                "a DNS server of this host listens on all addresses: bind it to its own (`ss -lnp sport = :53` names it)",
            ),
            Self::RangeConflict { .. } => Some(
                "use the same slot range in every home of this host, or end the other sandboxes first",
            ),
            Self::SlotOutOfRange { .. } => {
                Some("configure a larger slot range; a /19 holds all 4096 slots")
            }
            Self::ForeignInterface(_) => {
                Some("rename that interface: names `atl` + number belong to Atoll")
            }
            Self::Kernel { source, .. } | Self::Setting { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Some("run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN and a writable /proc/sys")
            }
            Self::Kernel { .. }
            | Self::Setting { .. }
            | Self::NamespaceThread(_)
            | Self::DnsPort { .. }
            | Self::FirewallAbsent
            | Self::Record { .. } => None,
        }
    }
}

impl From<NetworkError> for CreateError {
    fn from(error: NetworkError) -> Self {
        let mut what = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            what = format!("{what}: {inner}");
            cause = inner.source();
        }
        Self::Host {
            what,
            hint: error.hint().map(str::to_owned),
        }
    }
}

/// Turns what the kernel said about a step into an error that names the step.
pub(super) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> NetworkError {
    let what = what.into();
    move |source| NetworkError::Kernel { what, source }
}
