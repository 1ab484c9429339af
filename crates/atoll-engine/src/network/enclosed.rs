//! A network without a way out, for sandboxes that bring their own network
//! stack and can therefore not be dialed by entering their namespace.
//!
//! The sandbox's interface is one end of a veth pair; the other end is in a
//! second namespace in which there is nothing else: no route, no service, no
//! forwarding. Only who enters that one, as the host does to dial, can speak to
//! the sandbox. Nothing of it is in the host's namespace, so it needs no rules.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use super::error::{NetworkError, kernel};
use super::{SandboxNetwork, namespace, slot, veth};
use crate::host::{HostObject, creates};

/// The end that the host dials from.
pub(crate) const GATEWAY: Ipv4Addr = slot::GATEWAY;
const OUTSIDE: &str = "far0";
const MTU: u32 = 1500;

/// A sandbox's network, and the namespace at its other end.
pub(crate) struct Enclosed {
    pub(crate) network: SandboxNetwork,
    /// Keeps the far end alive; closed on exec.
    pub(crate) far: OwnedFd,
}

/// Makes both namespaces and connects them.
///
/// # Errors
/// When any part cannot be made; then nothing is left.
pub(crate) fn create() -> Result<Enclosed, NetworkError> {
    let mut far = namespace::create()?;
    let mut near = namespace::create()?;
    creates(HostObject::InnerVeth, || {
        veth::add_pair(&mut far.netlink, &near, OUTSIDE, MTU)
    })?;
    let index = veth::index_of(&mut far.netlink, OUTSIDE)?;
    far.netlink
        .add_address(index, GATEWAY, slot::INSIDE_PREFIX)
        .map_err(kernel(format!("give {GATEWAY} to `{OUTSIDE}`")))?;
    far.netlink
        .set_up(index)
        .map_err(kernel(format!("switch `{OUTSIDE}` on")))?;
    veth::equip(&mut near.netlink, veth::Connection::Enclosed)?;
    Ok(Enclosed {
        network: SandboxNetwork {
            namespace: near.descriptor,
            resolver: None,
            inside: Some(slot::GUEST),
            outside: Some(slot::GUEST),
            dns: None,
        },
        far: far.descriptor,
    })
}
