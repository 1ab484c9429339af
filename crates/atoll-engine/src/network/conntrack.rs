//! The connections of a slot, as the kernel's connection tracking knows them.

use std::io;
use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::error::{NetworkError, kernel};
use super::netlink::is;
use super::nfnetlink::{Attributes, Message, Netfilter, attribute};

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
    Netfilter::open()
        .and_then(|mut kernel| connections(&mut kernel, source))
        .map(|found| found.iter().map(|connection| connection.target).collect())
        .map_err(kernel(format!("list the connections of {source}")))
}

/// Forgets the connections of `source` whose target `is_cut`. What is still
/// sent on one is judged as new, and answers to it find nobody.
pub(super) fn cut(source: Ipv4Addr, is_cut: impl Fn(Ipv4Addr) -> bool) -> Result<(), NetworkError> {
    let cut = || {
        let mut kernel = Netfilter::open()?;
        for connection in connections(&mut kernel, source)? {
            if is_cut(connection.target) {
                connection.delete(&mut kernel)?;
            }
        }
        Ok(())
    };
    cut().map_err(kernel(format!("cut connections of {source}")))
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

fn connections(kernel: &mut Netfilter, source: Ipv4Addr) -> io::Result<Vec<Connection>> {
    // The kernel sorts out the others: a busy host has many.
    let addresses = Attributes::new().bytes(SOURCE, &source.octets());
    let filter = Attributes::new()
        .bytes(FILTER_ORIGINAL, &BY_SOURCE.to_ne_bytes())
        .bytes(FILTER_REPLY, &[0; 4]);
    let request = Message {
        kind: GET,
        flags: 0,
        family: FAMILY_IPV4,
        attributes: Attributes::new()
            .nested(
                TUPLE_ORIGINAL,
                &Attributes::new().nested(TUPLE_ADDRESSES, &addresses),
            )
            .nested(FILTER, &filter),
    };
    let parts = kernel.list(&request)?;
    Ok(parts
        .iter()
        .filter_map(|part| Connection::read(part, source))
        .collect())
}
