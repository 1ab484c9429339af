//! The network of a sandbox.
//!
//! | file | owns |
//! |---|---|
//! | `slot` | which addresses and interface name a slot has |
//! | `namespace` | the sandbox's network namespace |
//! | `veth` | the pair of interfaces between it and the host |
//! | `enclosed` | a pair between it and nothing, for stacks that cannot be entered |
//! | `host_wide` | what all sandboxes share: when it is made and unmade, and the record of it |
//! | `firewall` | the text of the rules |
//! | `nft` | the `nft` program and the table in the kernel |
//! | `forwarding`, `setting` | kernel settings |
//! | `uplink` | the way out of the host, and what may block it |
//! | `dns` | the forwarder on the gateway address |
//! | `netlink` | synchronous conversation with the kernel |
//!
//! The caller holds the lease of the slot, and the host-wide lock around
//! [`ensure_host`] and [`release_host`]. A namespace lives as long as a
//! descriptor or process holds it; when it dies, the kernel removes the veth.
//! Everything works in the network namespace of the calling thread, so the
//! tests have a host of their own.
//!
//! **Invariant**: no sandbox gets an interface while the rules are not loaded.

mod dns;
pub(crate) mod enclosed;
mod error;
mod firewall;
mod forwarding;
mod host_wide;
mod namespace;
mod netlink;
mod nft;
mod setting;
mod slot;
#[cfg(test)]
mod tests;
mod uplink;
mod veth;

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use netlink::Netlink;

use crate::NetworkMode;

pub(crate) use dns::{DnsForwarder, DnsSockets};
pub(crate) use error::NetworkError;
pub(crate) use host_wide::{ensure_host, release_host};
pub use slot::SlotRange;
pub(crate) use uplink::uplink_probe;
#[cfg(test)]
use veth::live_veths;
pub(crate) use veth::reap;

/// The network of one sandbox, made and not yet in use.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    /// Keeps the namespace alive until the sandbox is in it; closed on exec.
    pub(crate) namespace: OwnedFd,
    /// What `/etc/resolv.conf` inside should name.
    pub(crate) resolver: Option<Ipv4Addr>,
    /// The sandbox's own address, where it has one.
    pub(crate) address: Option<Ipv4Addr>,
    /// For [`DnsForwarder::spawn`], once the process may have threads.
    pub(crate) dns: Option<DnsSockets>,
}

/// Makes the network of the sandbox in `slot`.
///
/// The process has as many threads afterwards as before.
///
/// # Errors
/// When any part cannot be made exactly as asked; then nothing is left.
pub(crate) fn create(
    mode: NetworkMode,
    slot: u16,
    range: &SlotRange,
) -> Result<SandboxNetwork, NetworkError> {
    match mode {
        NetworkMode::None => {
            let namespace = namespace::create()?.descriptor;
            Ok(SandboxNetwork {
                namespace,
                resolver: None,
                address: None,
                dns: None,
            })
        }
        NetworkMode::Full => create_full(slot, range),
    }
}

fn create_full(slot: u16, range: &SlotRange) -> Result<SandboxNetwork, NetworkError> {
    let addresses = range.addresses(slot)?;
    if nft::rule_count()? == 0 {
        return Err(NetworkError::FirewallAbsent);
    }
    let mut host = Netlink::open()?;
    let mtu = uplink::mtu(&mut host)?;
    let mut namespace = namespace::create()?;
    let connected = veth::create(&mut host, &mut namespace, slot, addresses, mtu)
        .and_then(|()| DnsSockets::bind(addresses.gateway, &slot::interface_name(slot)));
    match connected {
        Ok(dns) => Ok(SandboxNetwork {
            namespace: namespace.descriptor,
            resolver: Some(addresses.gateway),
            address: Some(addresses.sandbox),
            dns: Some(dns),
        }),
        Err(error) => {
            // The interface would die with its namespace, but not before we return.
            if let Err(left) = veth::reap(slot) {
                tracing::warn!("the veth of slot {slot} is left to the kernel: {left}");
            }
            Err(error)
        }
    }
}
