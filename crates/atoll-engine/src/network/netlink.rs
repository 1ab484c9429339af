//! A synchronous conversation with the kernel's routing tables.
//!
//! The message types come from `rtnetlink`; its asynchronous transport does
//! not, because the monitor must stay single-threaded and without a runtime
//! while it creates a sandbox. A socket belongs for ever to the network
//! namespace of the thread that opened it.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};
use rtnetlink::{AddressMessageBuilder, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::error::{NetworkError, kernel};

/// How long the kernel may take for one answer; its global lock can be held by others.
const ANSWER_BOUND: Duration = Duration::from_secs(10);
/// The kernel never puts more into one datagram.
const DATAGRAM_BYTES: usize = 64 * 1024;

/// A netlink socket in one network namespace.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// What is known of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mtu: Option<u32>,
    pub(super) kind: InterfaceKind,
}

/// Whether an interface may be one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterfaceKind {
    Veth,
    Other,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, NetworkError> {
        let open = || {
            let socket = Socket::new(NETLINK_ROUTE)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_BOUND))?;
            Ok(Self {
                socket,
                sequence: 0,
            })
        };
        open().map_err(kernel("open a netlink socket"))
    }

    /// The interface called `name`, if there is one.
    pub(super) fn interface(&mut self, name: &str) -> io::Result<Option<Interface>> {
        let query = LinkMessageBuilder::<LinkUnspec>::new().name(name).build();
        match self.exchange(RouteNetlinkMessage::GetLink(query), 0) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(link) => Some(describe(link)),
                _ => None,
            })),
            Err(error) if is(&error, rustix::io::Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the interface that `link` describes; it must not exist yet.
    pub(super) fn add_link(&mut self, link: LinkMessage) -> io::Result<()> {
        self.exchange(
            RouteNetlinkMessage::NewLink(link),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Removes the interface `index`; one that is gone is removed already.
    pub(super) fn remove_link(&mut self, index: u32) -> io::Result<()> {
        let link = LinkMessageBuilder::<LinkUnspec>::new().index(index).build();
        match self.exchange(RouteNetlinkMessage::DelLink(link), 0) {
            Err(error) if is(&error, rustix::io::Errno::NODEV) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Switches the interface `index` on.
    pub(super) fn set_up(&mut self, index: u32) -> io::Result<()> {
        let link = LinkMessageBuilder::<LinkUnspec>::new()
            .index(index)
            .up()
            .build();
        self.exchange(RouteNetlinkMessage::SetLink(link), 0)
            .map(drop)
    }

    /// Gives the interface `index` an address.
    pub(super) fn add_address(
        &mut self,
        index: u32,
        address: Ipv4Addr,
        prefix: u8,
    ) -> io::Result<()> {
        let message = AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(address, prefix)
            .build();
        self.exchange(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Sends everything without a route of its own to `gateway`.
    pub(super) fn add_default_route(&mut self, gateway: Ipv4Addr) -> io::Result<()> {
        let message = RouteMessageBuilder::<Ipv4Addr>::new()
            .gateway(gateway)
            .build();
        self.exchange(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Sends what is for `target` alone to `neighbour`, who is at the other end of the interface `index`.
    pub(super) fn add_host_route(
        &mut self,
        index: u32,
        target: Ipv4Addr,
        neighbour: Ipv4Addr,
    ) -> io::Result<()> {
        let message = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(target, 32)
            .gateway(neighbour)
            .output_interface(index)
            .onlink()
            .build();
        self.exchange(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Says for good which hardware address `neighbour` has on the interface `index`.
    pub(super) fn add_neighbour(
        &mut self,
        index: u32,
        neighbour: Ipv4Addr,
        hardware: [u8; 6],
    ) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(neighbour)),
            NeighbourAttribute::LinkLayerAddress(hardware.to_vec()),
        ];
        self.exchange(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
        .map(drop)
    }

    /// Sends one request and gathers what the kernel says until it says "done".
    fn exchange(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;

        let mut answers = Vec::new();
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            datagram.clear();
            let (_, sender) = match self.socket.recv_from(&mut datagram, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if sender.port_number() != 0 {
                // Not from the kernel.
                continue;
            }
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let part: NetlinkMessage<RouteNetlinkMessage> =
                    NetlinkMessage::deserialize(rest)
                        .map_err(|error| io::Error::other(error.to_string()))?;
                let length = usize::try_from(part.header.length).map_err(io::Error::other)?;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if part.header.sequence_number != self.sequence {
                    continue;
                }
                match part.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(said) => {
                        return match said.code {
                            None => Ok(answers),
                            Some(code) => Err(io::Error::from_raw_os_error(-code.get())),
                        };
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Whether the kernel answered with `errno`.
pub(super) fn is(error: &io::Error, errno: rustix::io::Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn describe(link: &LinkMessage) -> Interface {
    let mut found = Interface {
        index: link.header.index,
        mtu: None,
        kind: InterfaceKind::Other,
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => found.mtu = Some(*mtu),
            LinkAttribute::LinkInfo(infos) if infos.contains(&LinkInfo::Kind(InfoKind::Veth)) => {
                found.kind = InterfaceKind::Veth;
            }
            _ => {}
        }
    }
    found
}
