//! Frames as nobody should send them, with rights that no sandbox has.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use super::super::netlink::Netlink;
use super::super::slot::{GATEWAY_HARDWARE, GUEST_HARDWARE};
use super::inside;

pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Puts one frame for the gateway on `eth0` of the sandbox in `namespace`.
pub(super) fn send_frame(namespace: &OwnedFd, ethertype: u16, payload: &[u8]) {
    let frame = [
        GATEWAY_HARDWARE.as_slice(),
        &GUEST_HARDWARE,
        &ethertype.to_be_bytes(),
        payload,
    ]
    .concat();
    inside(namespace, || {
        let index = Netlink::open()
            .unwrap()
            .interface("eth0")
            .unwrap()
            .unwrap()
            .index;
        // SAFETY: plain numbers go in; the result is checked before it is owned.
        let socket = unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(socket >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(socket)
        };
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut target: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        target.sll_family = u16::try_from(libc::AF_PACKET).unwrap();
        target.sll_ifindex = i32::try_from(index).unwrap();
        // SAFETY: the pointers and lengths describe `frame` and `target`, which outlive the call.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const target).cast(),
                u32::try_from(size_of::<libc::sockaddr_ll>()).unwrap(),
            )
        };
        assert_eq!(sent, isize::try_from(frame.len()).unwrap());
    });
}

/// The internet checksum over `bytes`.
pub(super) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

/// An IPv4 packet of `protocol`.
pub(super) fn ipv4(source: Ipv4Addr, target: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut header = vec![
        0x45, 0, length[0], length[1], 0, 1, 0, 0, 64, protocol, 0, 0,
    ];
    header.extend(source.octets());
    header.extend(target.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    header.extend(payload);
    header
}

/// A UDP datagram without checksum.
pub(super) fn udp_payload(target_port: u16, text: &str) -> Vec<u8> {
    let length = u16::try_from(8 + text.len()).unwrap();
    [
        4000_u16.to_be_bytes().as_slice(),
        &target_port.to_be_bytes(),
        &length.to_be_bytes(),
        &[0, 0],
        text.as_bytes(),
    ]
    .concat()
}

/// "Who has `target`? Tell `sender`."
pub(super) fn arp_request(sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut payload = vec![0, 1, 8, 0, 6, 4, 0, 1];
    payload.extend(GUEST_HARDWARE);
    payload.extend(sender.octets());
    payload.extend([0; 6]);
    payload.extend(target.octets());
    payload
}

/// A router's announcement that it is the way to everywhere.
pub(super) fn router_advertisement() -> Vec<u8> {
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x66];
    let target = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    // Type, code, checksum, hop limit, flags, lifetime, two timers.
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    let pseudo_header = [
        source.as_slice(),
        &target,
        &[0, 0, length[0], length[1], 0, 0, 0, 58],
        &message,
    ]
    .concat();
    let sum = checksum(&pseudo_header);
    message[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], 58, 255];
    packet.extend(source);
    packet.extend(target);
    packet.extend(message);
    packet
}
