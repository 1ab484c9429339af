//! The DNS forwarder of a sandbox: the one thing of the host it can reach.
//!
//! It listens on the gateway address, port 53, and passes whole DNS messages
//! to the resolvers that the host itself uses, which may lie in ranges that
//! are closed to sandboxes. It never resolves a name itself and remembers no
//! answer. Everything a sandbox sends is bounded: messages, queries under way,
//! connections, time.

mod connection;
mod forwarder;
mod message;
#[cfg(test)]
pub(super) use message::tests;
mod upstream;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::error::NetworkError;

pub(crate) use forwarder::DnsForwarder;
#[cfg(test)]
pub(super) use upstream::UpstreamSource;

const PORT: u16 = 53;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The sockets on which one sandbox's queries arrive.
#[derive(Debug)]
pub(crate) struct DnsSockets {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl DnsSockets {
    /// The same sockets, for a forwarder that is started again later.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            udp: self.udp.try_clone()?,
            tcp: self.tcp.try_clone()?,
        })
    }

    /// Takes port 53 of `gateway`, for what arrives by `interface` alone:
    /// neither other sandboxes nor the host's neighbours can ask here.
    pub(super) fn bind(gateway: Ipv4Addr, interface: &str) -> Result<Self, NetworkError> {
        let failed = |protocol| {
            move |source| NetworkError::DnsPort {
                address: gateway,
                protocol,
                source,
            }
        };
        let udp = open(SocketType::DGRAM, gateway, interface).map_err(failed("udp"))?;
        let tcp = open(SocketType::STREAM, gateway, interface).map_err(failed("tcp"))?;
        listen(&tcp, BACKLOG).map_err(|errno| failed("tcp")(errno.into()))?;
        Ok(Self {
            udp: udp.into(),
            tcp: tcp.into(),
        })
    }
}

fn open(kind: SocketType, gateway: Ipv4Addr, interface: &str) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::INET,
        kind,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    if kind == SocketType::STREAM {
        // Connections of the slot's last owner may still be closing.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind_to_interface(&socket, interface)?;
    bind(&socket, &SocketAddrV4::new(gateway, PORT))?;
    Ok(socket)
}

fn bind_to_interface(socket: &OwnedFd, interface: &str) -> io::Result<()> {
    let length = libc::socklen_t::try_from(interface.len()).map_err(io::Error::other)?;
    // SAFETY: the pointer and length describe `interface`, which outlives the
    // call; the kernel copies the name and keeps no reference to it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
