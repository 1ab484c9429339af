//! The connections of a slot, as the kernel's connection tracking knows them.

use std::io;
use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::error::{NetworkError, kernel};
use super::netlink::is;
use super::nfnetlink::{Attributes, Message, Netfilter, attribute, with_netfilter};

// Numbers of the kernel's interface (linux/netfilter/nfnetlink_conntrack.h).
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const FAMILY_IPV4: u8 = 2;
const TUPLE_ORIGINAL: u16 = 1;
const CONNECTION_ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
/// Compare the source, and nothing else of a tuple.
const BY_SOURCE: u32 = 1;
const TUPLE_ADDRESSES: u16 = 1;
const SOURCE: u16 = 1;
const TARGET: u16 = 2;

/// Where the connections that `source` began lead to.
pub(super) fn targets(source: Ipv4Addr) -> Result<Vec<Ipv4Addr>, NetworkError> {
    with_netfilter(|kernel| connections(kernel, source))
        .map(|found| found.iter().map(|connection| connection.target).collect())
        .map_err(kernel(format!("list the connections of {source}")))
}

/// Forgets the connections of `source` whose target `is_cut`. What is still
/// sent on one is judged as new, and answers to it find nobody.
pub(super) fn cut(source: Ipv4Addr, is_cut: impl Fn(Ipv4Addr) -> bool) -> Result<(), NetworkError> {
    with_netfilter(|kernel| cut_one_by_one(kernel, source, is_cut))
        .map_err(kernel(format!("cut connections of {source}")))
}

/// Forgets all connections of `source`.
///
/// The kernel has no index of them: it goes through its whole table either way,
/// in 0.3 ms if it may pick them itself, in 10 ms if it has to list them.
pub(super) fn cut_all(source: Ipv4Addr) -> Result<(), NetworkError> {
    let cut = |kernel: &mut Netfilter| match kernel.ask(&begun_by(source, DELETE)) {
        // An older one does not pick, and takes this for an incomplete name of one.
        Err(error) if is(&error, Errno::INVAL) => cut_one_by_one(kernel, source, |_| true),
        other => other.map(drop),
    };
    with_netfilter(cut).map_err(kernel(format!("cut all connections of {source}")))
}

fn cut_one_by_one(
    kernel: &mut Netfilter,
    source: Ipv4Addr,
    is_cut: impl Fn(Ipv4Addr) -> bool,
) -> io::Result<()> {
    for connection in connections(kernel, source)? {
        if is_cut(connection.target) {
            connection.delete(kernel)?;
        }
    }
    Ok(())
}

struct Connection {
    target: Ipv4Addr,
    /// What the kernel said of it, as far as it takes that to name it.
    attributes: Attributes,
}

impl Connection {
    /// Reads one; `None` if `source` did not begin it.
    fn read(part: &[u8], source: Ipv4Addr) -> Option<Self> {
        let tuple = attribute(part, TUPLE_ORIGINAL)?;
        let addresses = attribute(tuple, TUPLE_ADDRESSES)?;
        let address = |kind| {
            let bytes = attribute(addresses, kind)?.first_chunk::<4>()?;
            Some(Ipv4Addr::from(*bytes))
        };
        if address(SOURCE)? != source {
            return None;
        }
        let mut attributes = Attributes::new().nested_bytes(TUPLE_ORIGINAL, tuple);
        for kind in [CONNECTION_ID, ZONE] {
            if let Some(value) = attribute(part, kind) {
                attributes = attributes.bytes(kind, value);
            }
        }
        Some(Self {
            target: address(TARGET)?,
            attributes,
        })
    }

    /// Forgets it; one that ended by itself is forgotten already.
    fn delete(self, kernel: &mut Netfilter) -> io::Result<()> {
        let request = Message {
            kind: DELETE,
            flags: 0,
            family: FAMILY_IPV4,
            attributes: self.attributes,
        };
        match kernel.ask(&request) {
            Err(error) if is(&error, Errno::NOENT) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// A request that does `kind` to the connections that `source` began.
fn begun_by(source: Ipv4Addr, kind: u16) -> Message {
    let addresses = Attributes::new().bytes(SOURCE, &source.octets());
    let filter = Attributes::new()
        .bytes(FILTER_ORIGINAL, &BY_SOURCE.to_ne_bytes())
        .bytes(FILTER_REPLY, &[0; 4]);
    Message {
        kind,
        flags: 0,
        family: FAMILY_IPV4,
        attributes: Attributes::new()
            .nested(
                TUPLE_ORIGINAL,
                &Attributes::new().nested(TUPLE_ADDRESSES, &addresses),
            )
            .nested(FILTER, &filter),
    }
}

fn connections(kernel: &mut Netfilter, source: Ipv4Addr) -> io::Result<Vec<Connection>> {
    // The kernel sorts out the others: a busy host has many.
    let parts = kernel.list(&begun_by(source, GET))?;
    Ok(parts
        .iter()
        .filter_map(|part| Connection::read(part, source))
        .collect())
}
