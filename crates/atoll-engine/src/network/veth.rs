//! The veth pair of a slot: `atl<slot>` on the host, `eth0` in the sandbox.
//!
//! Both ends know each other's hardware address from the start, so nothing has
//! to be asked or learned. The host's end has the gateway's address; what is for
//! the slot's address goes to the sandbox, whatever it calls itself inside.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;

use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::io::Errno;

use super::error::{NetworkError, kernel};
use super::namespace::NewNamespace;
use super::netlink::{InterfaceKind, Netlink, is};
use super::setting;
use super::slot::{
    GATEWAY, GATEWAY_HARDWARE, GUEST, GUEST_HARDWARE, INSIDE_PREFIX, interface_name,
    slot_of_interface,
};
use crate::host::{HostObject, creates};

/// Name of the interface inside.
pub(super) const INSIDE: &str = "eth0";
/// A dead owner's interface can vanish on its own while we remove it.
const ATTEMPTS: usize = 3;

/// Connects `namespace` to the host as `slot`, whose address on the host is `address`.
pub(super) fn create(
    host: &mut Netlink,
    namespace: &mut NewNamespace,
    slot: u16,
    address: Ipv4Addr,
    mtu: u32,
) -> Result<(), NetworkError> {
    let name = interface_name(slot);
    creates(HostObject::Veth, || add_pair(host, namespace, &name, mtu))?;

    // Down until its settings are right: no IPv6, no redirects, no source but
    // the slot's own even if the rules were gone, and forwarding also where the
    // host's default for new interfaces is off.
    setting::write_if_present(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1")?;
    for (key, value) in [
        ("accept_redirects", "0"),
        ("send_redirects", "0"),
        ("rp_filter", "1"),
        ("forwarding", "1"),
    ] {
        setting::write(&format!("net/ipv4/conf/{name}/{key}"), value)?;
    }
    let outside = index_of(host, &name)?;
    host.add_address(outside, GATEWAY, 32)
        .map_err(kernel(format!("give {GATEWAY} to `{name}`")))?;
    host.set_up(outside)
        .map_err(kernel(format!("switch `{name}` on")))?;
    host.add_neighbour(outside, GUEST, GUEST_HARDWARE)
        .map_err(kernel(format!("name the neighbour of `{name}`")))?;
    host.add_host_route(outside, address, GUEST)
        .map_err(kernel(format!("set the route to {address}")))?;

    equip(&mut namespace.netlink, Connection::Gateway)
}

/// What is at the other end of the sandbox's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    /// The way out.
    Gateway,
    /// Nothing but who dials.
    Enclosed,
}

/// Gives the interface of the namespace of `inner` all it needs. What it has already is fine.
pub(super) fn equip(inner: &mut Netlink, connection: Connection) -> Result<(), NetworkError> {
    let there_is_fine = |result: io::Result<()>| match result {
        Err(error) if is(&error, Errno::EXIST) => Ok(()),
        other => other,
    };
    let inside = index_of(inner, INSIDE)?;
    there_is_fine(inner.add_address(inside, GUEST, INSIDE_PREFIX))
        .map_err(kernel(format!("give {GUEST} to `{INSIDE}` of the sandbox")))?;
    inner
        .set_up(inside)
        .map_err(kernel(format!("switch `{INSIDE}` of the sandbox on")))?;
    if connection == Connection::Enclosed {
        return Ok(());
    }
    there_is_fine(inner.add_neighbour(inside, GATEWAY, GATEWAY_HARDWARE))
        .map_err(kernel("name the gateway of the sandbox"))?;
    there_is_fine(inner.add_default_route(GATEWAY))
        .map_err(kernel("set the default route of the sandbox"))
}

/// Makes the pair with its inner end born in the namespace: moving it there
/// later costs about 20 ms.
pub(super) fn add_pair(
    host: &mut Netlink,
    namespace: &NewNamespace,
    name: &str,
    mtu: u32,
) -> Result<(), NetworkError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let inside = LinkMessageBuilder::<LinkUnspec>::new()
            .name(INSIDE)
            .mtu(mtu)
            .address(GUEST_HARDWARE.to_vec())
            .setns_by_fd(namespace.descriptor.as_raw_fd())
            .build();
        let pair = LinkVeth::new(name, INSIDE)
            .mtu(mtu)
            .address(GATEWAY_HARDWARE.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(inside)))
            .build();
        match host.add_link(pair) {
            // Left by a dead owner of this slot.
            Err(error) if is(&error, Errno::EXIST) && attempt < ATTEMPTS => remove(host, name)?,
            other => return other.map_err(kernel(format!("make the veth pair `{name}`"))),
        }
    }
}

/// Removes the interface `name` if it exists and is a veth.
fn remove(host: &mut Netlink, name: &str) -> Result<(), NetworkError> {
    let found = host
        .interface(name)
        .map_err(kernel(format!("look for `{name}`")))?;
    match found {
        None => Ok(()),
        Some(found) if found.kind == InterfaceKind::Veth => host
            .remove_link(found.index)
            .map_err(kernel(format!("remove `{name}`"))),
        Some(_) => Err(NetworkError::ForeignInterface(name.to_owned())),
    }
}

/// Removes the interface that a dead owner of `slot` left.
pub(super) fn reap(slot: u16) -> Result<(), NetworkError> {
    remove(&mut Netlink::open()?, &interface_name(slot))
}

/// Slots whose host-side interface exists, in rising order.
pub(super) fn live_veths() -> Result<Vec<u16>, NetworkError> {
    // Not /sys/class/net: that shows the namespace of whoever mounted it.
    let table = fs::read_to_string("/proc/thread-self/net/dev")
        .map_err(kernel("list the network interfaces of this host"))?;
    Ok(slots_in(&table))
}

/// Slots not in `leased` whose host-side interface exists and is a veth.
pub(super) fn strays(leased: &[u16]) -> Result<Vec<u16>, NetworkError> {
    let mut host = Netlink::open()?;
    let mut found = Vec::new();
    for slot in live_veths()? {
        let name = interface_name(slot);
        let interface = host
            .interface(&name)
            .map_err(kernel(format!("look for `{name}`")))?;
        let is_veth = interface.is_some_and(|interface| interface.kind == InterfaceKind::Veth);
        if is_veth && !leased.contains(&slot) {
            found.push(slot);
        }
    }
    Ok(found)
}

fn slots_in(table: &str) -> Vec<u16> {
    let names = table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim());
    let mut slots: Vec<u16> = names.filter_map(slot_of_interface).collect();
    slots.sort_unstable();
    slots
}

pub(super) fn index_of(netlink: &mut Netlink, name: &str) -> Result<u32, NetworkError> {
    let found = netlink
        .interface(name)
        .map_err(kernel(format!("look for `{name}`")))?;
    let found = found.ok_or_else(|| kernel(format!("find `{name}`"))(Errno::NODEV.into()))?;
    Ok(found.index)
}

#[cfg(test)]
mod tests {
    use super::slots_in;

    #[test]
    fn slots_are_read_from_the_kernels_table() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes\n    \
            lo:  128724     868    0    0    0     0          0         0   128724     868\n  \
            atl12: 1 2\natl3:0 0\natlas0: 0 0\n  eth0: 1 1\n";
        assert_eq!(slots_in(table), [3, 12]);
    }
}
