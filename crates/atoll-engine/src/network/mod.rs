//! The network of a sandbox.
//!
//! | file | owns |
//! |---|---|
//! | `policy`, `cidr` | what a sandbox may reach |
//! | `usage` | what was counted of it, and why it was denied |
//! | `slot` | which addresses and interface name a slot has |
//! | `namespace` | the sandbox's network namespace |
//! | `veth` | the pair of interfaces between it and the host |
//! | `host_network` | which host this is, where a machine has several |
//! | `enclosed` | a pair between it and nothing, for stacks that cannot be entered |
//! | `host_wide` | what all sandboxes share: when it is made and unmade, and the record of it |
//! | `firewall` | the text of the rules, the same for all |
//! | `membership` | what the rules know of one sandbox: address, lists, counters |
//! | `conntrack` | connections, and cutting them |
//! | `nft`, `nfnetlink` | the tables in the kernel; the conversation about them |
//! | `forwarding`, `setting` | kernel settings |
//! | `uplink`, `egress` | the way out of the host, what may block it, and a packet that tries |
//! | `dns` | the forwarder on the gateway address |
//! | `netlink` | synchronous conversation with the kernel about interfaces |
//!
//! The caller holds the lease of the slot, and the host-wide lock around
//! [`ensure_host`] and [`release_host`]. A namespace lives as long as a
//! descriptor or process holds it; when it dies, the kernel removes the veth.
//! Everything works in the network namespace of the calling thread, so the
//! tests have a host of their own.
//!
//! **Invariant**: no sandbox gets an interface while the rules are not loaded
//! and do not know it.

mod cidr;
mod conntrack;
mod dns;
mod egress;
pub(crate) mod enclosed;
mod error;
mod firewall;
mod forwarding;
mod host_network;
mod host_wide;
mod membership;
mod namespace;
mod netlink;
mod nfnetlink;
mod nft;
mod policy;
mod setting;
mod slot;
#[cfg(test)]
mod tests;
mod uplink;
mod usage;
mod veth;

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use error::kernel;
use membership::Member;
use netlink::Netlink;

use crate::host::process::within_network;

pub use cidr::{Cidr, InvalidCidr};
pub(crate) use dns::{DnsForwarder, DnsSockets};
pub(crate) use egress::{Egress, egress_probe};
pub(crate) use error::NetworkError;
pub(crate) use host_network::HostNetwork;
pub(crate) use host_wide::{ensure_host, forget_dead_hosts, release_host};
pub use policy::{InvalidPolicy, NetworkPolicy};
pub use slot::SlotRange;
pub(crate) use uplink::uplink_probe;
pub use usage::{Denial, NetworkUsage, Traffic};

/// The network of one sandbox, made and not yet in use.
#[derive(Debug)]
pub(crate) struct SandboxNetwork {
    /// Keeps the namespace alive until the sandbox is in it; closed on exec.
    pub(crate) namespace: OwnedFd,
    /// What `/etc/resolv.conf` inside should name.
    pub(crate) resolver: Option<Ipv4Addr>,
    /// Its address as it knows it, where it has one.
    pub(crate) inside: Option<Ipv4Addr>,
    /// Its address as whoever dials it knows it.
    pub(crate) outside: Option<Ipv4Addr>,
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
    policy: &NetworkPolicy,
    slot: u16,
    range: &SlotRange,
) -> Result<SandboxNetwork, NetworkError> {
    if !policy.has_interface() {
        return Ok(SandboxNetwork {
            namespace: namespace::create()?.descriptor,
            resolver: None,
            inside: None,
            outside: None,
            dns: None,
        });
    }
    let address = range.address(slot)?;
    if nft::rule_count()? == 0 {
        return Err(NetworkError::FirewallAbsent);
    }
    let member = Member::of(slot);
    member.join(address, policy)?;
    connect(slot, address).inspect_err(|_| {
        // The interface would die with its namespace, but not before we return.
        if let Err(left) = veth::reap(slot).and_then(|()| member.leave()) {
            tracing::warn!("something of slot {slot} is left to the next start: {left}");
        }
    })
}

fn connect(slot: u16, address: Ipv4Addr) -> Result<SandboxNetwork, NetworkError> {
    let mut host = Netlink::open()?;
    let mtu = uplink::mtu(&mut host)?;
    let mut namespace = namespace::create()?;
    veth::create(&mut host, &mut namespace, slot, address, mtu)?;
    let dns = DnsSockets::bind(slot::GATEWAY, &slot::interface_name(slot))?;
    Ok(SandboxNetwork {
        namespace: namespace.descriptor,
        resolver: Some(slot::GATEWAY),
        inside: Some(slot::GUEST),
        outside: Some(address),
        dns: Some(dns),
    })
}

/// Gives the interface inside of `network` its address again, and its routes: a kernel in user
/// space takes them away when it takes the interface over.
///
/// # Errors
/// When the kernel refuses; it can be repeated.
pub(crate) fn address_again(network: &SandboxNetwork) -> Result<(), NetworkError> {
    within_network(&network.namespace, || {
        let connection = match network.resolver {
            Some(_) => veth::Connection::Gateway,
            None => veth::Connection::Enclosed,
        };
        Ok(Netlink::open().and_then(|mut inner| veth::equip(&mut inner, connection)))
    })
    .map_err(kernel("enter the namespace of the sandbox"))?
}

/// Puts `policy` in place of what the sandbox in `slot` had, while it runs.
/// Connections to what is forbidden now are cut.
///
/// # Errors
/// When the kernel refuses; then nothing has changed, or what has is stricter.
pub(crate) fn change(
    policy: &NetworkPolicy,
    slot: u16,
    range: &SlotRange,
) -> Result<(), NetworkError> {
    Member::of(slot).change(policy)?;
    conntrack::cut(range.address(slot)?, |target| match target {
        slot::GATEWAY => !policy.resolves_names(),
        _ => !policy.permits(target),
    })
}

/// What was counted of the sandbox in `slot`; `None` when it has no interface.
///
/// # Errors
/// When the kernel cannot be asked.
pub(crate) fn usage(slot: u16) -> Result<Option<NetworkUsage>, NetworkError> {
    Member::of(slot).usage()
}

/// Who removes the interface of a slot that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    /// The kernel, a moment after the last process of its namespace: waiting
    /// for it would cost about 20 ms more.
    DiesWithItsNamespace,
    /// We, now: who knows what still holds the namespace.
    MayBeHeld,
}

/// Takes away what a slot had besides its namespace, whoever made it.
/// The next owner of its address inherits no connection.
///
/// # Errors
/// When the kernel refuses; it can be repeated.
pub(crate) fn give_back(
    slot: u16,
    range: &SlotRange,
    interface: Interface,
) -> Result<(), NetworkError> {
    if interface == Interface::MayBeHeld {
        veth::reap(slot)?;
    }
    Member::of(slot).leave()?;
    if let Ok(address) = range.address(slot) {
        conntrack::cut_all(address)?;
    }
    Ok(())
}

/// Slots that have an interface on this host although they are not in `leased`:
/// something keeps the namespace of a sandbox that ended, or its lease was removed by hand.
///
/// # Errors
/// When the kernel cannot be asked.
pub(crate) fn strays(leased: &[u16]) -> Result<Vec<u16>, NetworkError> {
    veth::strays(leased)
}

/// Takes away the interface of a stray slot and what the rules know of it.
///
/// # Errors
/// When the kernel refuses; it can be repeated.
pub(crate) fn remove_stray(slot: u16) -> Result<(), NetworkError> {
    veth::reap(slot)?;
    Member::of(slot).leave()
}
