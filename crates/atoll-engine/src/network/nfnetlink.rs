//! The kernel's netfilter interface: messages as bytes, and a synchronous
//! conversation. Asked directly where starting `nft` would cost more than the
//! rest of the network.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::host_network::HostNetwork;

/// How long the kernel may take for one answer.
const ANSWER_BOUND: Duration = Duration::from_secs(5);
/// The kernel never puts more into one datagram.
const DATAGRAM_BYTES: usize = 64 * 1024;
/// A listing that changed while it was read is read again, this often.
const LISTING_ATTEMPTS: usize = 10;

// Numbers of the kernel's interface (linux/netlink.h, linux/netfilter/nfnetlink.h).
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const INTERRUPTED: u16 = 0x10;
const DUMP: u16 = 0x300;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
const SUBHEADER: usize = 4;
/// The subsystem a batch is for.
const NFTABLES: u16 = 10;

/// Attributes on their way to the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Attributes {
    bytes: Vec<u8>,
}

impl Attributes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds `value` as it is. None here is longer than the length can say: lists are bounded.
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn nested(self, kind: u16, inner: &Self) -> Self {
        self.nested_bytes(kind, &inner.bytes)
    }

    /// As [`Self::nested`], with attributes that the kernel wrote.
    pub(super) fn nested_bytes(self, kind: u16, inner: &[u8]) -> Self {
        self.bytes(kind | NESTED, inner)
    }
}

/// The attributes in `bytes`, each with its kind; garbage ends the list.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let [a, b, c, d] = *rest.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & KIND_MASK, value))
    })
}

/// The first attribute of `kind` in `bytes`.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// Subsystem and what to do.
    pub(super) kind: u16,
    /// Flags besides those that every request has.
    pub(super) flags: u16,
    /// Such as `inet`.
    pub(super) family: u8,
    pub(super) attributes: Attributes,
}

impl Message {
    fn write(&self, out: &mut Vec<u8>, sequence: u32, flags: u16, resource: u16) {
        let length = HEADER + SUBHEADER + self.attributes.bytes.len();
        out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        out.extend(self.kind.to_ne_bytes());
        out.extend((REQUEST | self.flags | flags).to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend([self.family, 0]);
        out.extend(resource.to_be_bytes());
        out.extend(&self.attributes.bytes);
    }
}

/// A socket to the netfilter of one network namespace.
pub(super) struct Netfilter {
    socket: Socket,
    sequence: u32,
}

/// What one message of the kernel says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// A part of a listing: kind and attributes.
    Part(u16, Vec<u8>),
    /// The listing changed while it was read.
    Interrupted,
    /// Done without complaint.
    Done,
    Failed(i32),
}

thread_local! {
    /// The conversation of this thread, and with which namespace.
    static KEPT: Cell<Option<(HostNetwork, Netfilter)>> = const { Cell::new(None) };
}

/// Has `call` converse with the netfilter of the calling thread's network namespace.
///
/// The socket is kept for this thread's next call. Whoever closes one a moment
/// after anything was removed waits until the kernel has freed it, up to 20 ms
/// in which nobody else can change rules; a monitor closes its own when it exits.
pub(super) fn with_netfilter<T>(
    call: impl FnOnce(&mut Netfilter) -> io::Result<T>,
) -> io::Result<T> {
    let here = HostNetwork::current()?;
    let kept = KEPT.take().filter(|(host, _)| *host == here);
    let mut kernel = match kept {
        Some((_, kernel)) => kernel,
        None => Netfilter::open()?,
    };
    let result = call(&mut kernel);
    KEPT.set(Some((here, kernel)));
    result
}

impl Netfilter {
    fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_NETFILTER)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_BOUND))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Applies changes of nftables, all or none.
    pub(super) fn transact(&mut self, messages: &[Message]) -> io::Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let first = self.sequence.wrapping_add(1);
        let edge = |kind| Message {
            kind,
            flags: 0,
            family: 0,
            attributes: Attributes::new(),
        };
        let mut bytes = Vec::new();
        edge(BATCH_BEGIN).write(&mut bytes, first, 0, NFTABLES);
        self.sequence = first;
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.write(&mut bytes, self.sequence, ACKNOWLEDGE, 0);
        }
        self.sequence = self.sequence.wrapping_add(1);
        edge(BATCH_END).write(&mut bytes, self.sequence, 0, NFTABLES);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        let mut done = 0;
        while done < messages.len() {
            for said in self.hear(first)? {
                match said {
                    Said::Done => done += 1,
                    Said::Failed(code) => return Err(io::Error::from_raw_os_error(code)),
                    Said::Part(..) | Said::Interrupted => {}
                }
            }
        }
        Ok(())
    }

    /// Asks for one thing, or has one thing done; the attributes of each answer.
    pub(super) fn ask(&mut self, message: &Message) -> io::Result<Vec<Vec<u8>>> {
        match self.converse(message, ACKNOWLEDGE)? {
            Some(answers) => Ok(answers),
            None => Err(io::Error::other("a single answer was interrupted")),
        }
    }

    /// Lists everything that `message` names; the attributes of each part.
    pub(super) fn list(&mut self, message: &Message) -> io::Result<Vec<Vec<u8>>> {
        for _ in 0..LISTING_ATTEMPTS {
            if let Some(answers) = self.converse(message, DUMP)? {
                return Ok(answers);
            }
        }
        Err(io::Error::other(
            "the listing changed again and again while it was read",
        ))
    }

    fn converse(&mut self, message: &Message, flags: u16) -> io::Result<Option<Vec<Vec<u8>>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        message.write(&mut bytes, self.sequence, flags, 0);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        let mut answers = Vec::new();
        let mut whole = true;
        loop {
            for said in self.hear(self.sequence)? {
                match said {
                    Said::Part(_, attributes) => answers.push(attributes),
                    Said::Interrupted => whole = false,
                    Said::Done => return Ok(whole.then_some(answers)),
                    Said::Failed(code) => return Err(io::Error::from_raw_os_error(code)),
                }
            }
        }
    }

    /// The next datagram, as far as it answers something since the message `first`.
    fn hear(&self, first: u32) -> io::Result<Vec<Said>> {
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            datagram.clear();
            match self.socket.recv_from(&mut datagram, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                // Not from the kernel.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok(_) => return understand(&datagram, first),
            }
        }
    }
}

/// Takes a datagram apart.
fn understand(datagram: &[u8], first: u32) -> io::Result<Vec<Said>> {
    let mut heard = Vec::new();
    let mut rest = datagram;
    while let Some(header) = rest.first_chunk::<HEADER>() {
        let [
            a,
            b,
            c,
            d,
            kind_low,
            kind_high,
            flags_low,
            flags_high,
            s,
            t,
            u,
            v,
            ..,
        ] = *header;
        let length = usize::try_from(u32::from_ne_bytes([a, b, c, d])).map_err(io::Error::other)?;
        let body = rest
            .get(HEADER..length)
            .ok_or_else(|| io::Error::other("a netlink message that is not as long as it says"))?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let sequence = u32::from_ne_bytes([s, t, u, v]);
        if sequence.wrapping_sub(first) > u32::MAX / 2 {
            continue; // answers something earlier
        }
        if u16::from_ne_bytes([flags_low, flags_high]) & INTERRUPTED != 0 {
            heard.push(Said::Interrupted);
        }
        let code = || {
            let code = body.first_chunk::<4>().copied().unwrap_or_default();
            i32::from_ne_bytes(code).saturating_neg()
        };
        heard.push(match u16::from_ne_bytes([kind_low, kind_high]) {
            MESSAGE_DONE => Said::Done,
            MESSAGE_ERROR if code() == 0 => Said::Done,
            MESSAGE_ERROR => Said::Failed(code()),
            kind => Said::Part(kind, body.get(SUBHEADER..).unwrap_or_default().to_vec()),
        });
    }
    Ok(heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = u32::try_from(HEADER + body.len()).unwrap();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn parts_refusals_and_ends_are_told_apart() {
        let datagram = [
            message(99, 0, 7, &[1; 9]),
            message(98, 0, 3, &[1; 4]),
            message(97, INTERRUPTED, 8, &[1; 4]),
            message(MESSAGE_ERROR, 0, 8, &(-1_i32).to_ne_bytes()),
            message(MESSAGE_ERROR, 0, 8, &[0; 4]),
            message(MESSAGE_DONE, 0, 8, &[0; 4]),
        ]
        .concat();
        assert_eq!(
            understand(&datagram, 7).unwrap(),
            [
                Said::Part(99, vec![1; 5]),
                Said::Interrupted,
                Said::Part(97, Vec::new()),
                Said::Failed(1),
                Said::Done,
                Said::Done,
            ]
        );
    }

    #[test]
    fn attributes_read_back_as_written() {
        let inner = Attributes::new().number(1, 5).text(2, "name");
        let outer = Attributes::new().bytes(3, &[9]).nested(4, &inner);
        assert_eq!(outer.bytes.len() % 4, 0);
        assert_eq!(attribute(&outer.bytes, 3), Some([9].as_slice()));
        let found = attribute(&outer.bytes, 4).unwrap();
        assert_eq!(
            attributes(found).collect::<Vec<_>>(),
            [
                (1, 5_u32.to_be_bytes().as_slice()),
                (2, b"name\0".as_slice())
            ]
        );
        assert_eq!(attribute(&outer.bytes, 5), None);
    }

    proptest::proptest! {
        #[test]
        fn garbage_never_loops_or_panics(datagram: Vec<u8>) {
            let _ = understand(&datagram, 0);
            let _ = attributes(&datagram).count();
        }
    }
}
