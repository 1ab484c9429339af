//! Whether what a sandbox sends really leaves this host.
//!
//! An accept in our table does not override a drop in somebody else's, and no
//! list of rules says for certain what they do together. So a packet is sent
//! through a slot as a sandbox would send it. It goes to an address that
//! belongs to nobody, and lives just long enough to reach the host's own next
//! router: no stranger ever sees it, and no answer is needed. Connection
//! tracking remembers exactly those packets that went all the way through.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::error::{NetworkError, kernel};
use super::policy::NetworkPolicy;
use super::slot::SlotRange;
use super::{conntrack, create};
use crate::host::process::within_network;

/// In a range that is kept for documentation.
const NOBODY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Port of the discard service.
const DISCARD: u16 = 9;
/// Routers that may pass it on: this host, and none after it.
const HOPS: u32 = 2;
/// How long the kernel may take to pass one packet on.
const PASSAGE_BOUND: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// What became of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Egress {
    /// It left this host.
    Left,
    /// Something on this host dropped it.
    Dropped,
}

/// Sends the packet through `slot`. The caller holds its lease, has made the
/// host ready, and gives the slot back afterwards.
///
/// # Errors
/// When the slot cannot be made, or the packet not sent at all.
pub(crate) fn egress_probe(slot: u16, range: &SlotRange) -> Result<Egress, NetworkError> {
    let address = range.address(slot)?;
    let network = create(&NetworkPolicy::full(), slot, range)?;
    within_network(&network.namespace, || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_ttl(HOPS)?;
        socket.send_to(b"", (NOBODY, DISCARD)).map(drop)
    })
    .map_err(kernel("send a packet through a slot"))?;
    let start = Instant::now();
    while start.elapsed() < PASSAGE_BOUND {
        if conntrack::targets(address)?.contains(&NOBODY) {
            return Ok(Egress::Left);
        }
        thread::sleep(LOOK_PAUSE);
    }
    Ok(Egress::Dropped)
}
