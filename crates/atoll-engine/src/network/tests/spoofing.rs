//! Raw packets, forged sources, ARP and IPv6 games: with root's rights in the
//! namespace, which code in a sandbox never has.

use std::os::fd::OwnedFd;

use super::super::netlink::Netlink;
use super::super::slot::{GATEWAY, GUEST};
use super::super::{Denial, setting};
use super::raw::{
    ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, arp_request, ipv4, router_advertisement,
    send_frame, udp_payload,
};
use super::*;

const FOREIGN: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 77);
const UDP: u8 = 17;
const GRE: u8 = 47;

#[test]
fn only_the_sandboxes_own_address_gets_out() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((ANY, 7000)));
        // Another slot's, the host's, nobody's, the gateway's.
        for forged in [address_of(NEIGHBOUR), HOST, FOREIGN, GATEWAY] {
            let packet = ipv4(forged, SERVER, UDP, &udp_payload(7000, "forged"));
            assert_denied(SLOT, Denial::ForgedSource, || {
                send_frame(&network.namespace, ETHERTYPE_IPV4, &packet);
            });
        }
        // As an address of the interface, without raw packets.
        inside(&network.namespace, || {
            let mut netlink = Netlink::open().unwrap();
            let index = netlink.interface("eth0").unwrap().unwrap().index;
            netlink.add_address(index, FOREIGN, 32).unwrap();
        });
        assert_denied(SLOT, Denial::ForgedSource, || {
            say_from(&network.namespace, FOREIGN, (SERVER, 7000), "forged");
        });
        assert_silent(&server);
        // The same frame with its own address arrives.
        let packet = ipv4(GUEST, SERVER, UDP, &udp_payload(7000, "own"));
        send_frame(&network.namespace, ETHERTYPE_IPV4, &packet);
        let (text, sender) = receive(&server);
        assert_eq!((text.as_str(), sender.ip()), ("own", HOST.into()));

        host.weaken(&["goto deny_forged_source"], &[SLOT]);
        let packet = ipv4(FOREIGN, SERVER, UDP, &udp_payload(7000, "forged"));
        send_frame(&network.namespace, ETHERTYPE_IPV4, &packet);
        let (text, sender) = receive(&server);
        assert_eq!((text.as_str(), sender.ip()), ("forged", FOREIGN.into()));
    });
}

/// A socket out there that takes every packet of `protocol`.
fn raw_listener(namespace: &OwnedFd, protocol: u8) -> OwnedFd {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    inside(namespace, || {
        let protocol = rustix::net::Protocol::from_raw(u32::from(protocol).try_into().unwrap());
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::RAW,
            Some(protocol),
        )
        .unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).unwrap();
        socket
    })
}

#[test]
fn protocols_nobody_needs_get_nowhere() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let listener = raw_listener(&host.internet.descriptor, GRE);
        let packet = ipv4(GUEST, SERVER, GRE, b"tunnel!!");
        assert_denied(SLOT, Denial::Protocol, || {
            send_frame(&network.namespace, ETHERTYPE_IPV4, &packet);
        });
        // An ICMP redirect, and an answer that nobody asked for.
        for icmp_type in [5, 0] {
            let mut message = vec![icmp_type, 1, 0, 0, 0, 0, 0, 0];
            let sum = super::raw::checksum(&message);
            message[2..4].copy_from_slice(&sum);
            let packet = ipv4(GUEST, SERVER, 1, &message);
            assert_denied(SLOT, Denial::Protocol, || {
                send_frame(&network.namespace, ETHERTYPE_IPV4, &packet);
            });
        }
        host.weaken(&["goto deny_protocol"], &[SLOT]);
        send_frame(&network.namespace, ETHERTYPE_IPV4, &packet);
        let mut arrived = [0; 100];
        let (length, _) =
            rustix::net::recv(&listener, &mut arrived, rustix::net::RecvFlags::empty()).unwrap();
        assert!(arrived[..length].ends_with(b"tunnel!!"));
    });
}

fn neighbours() -> String {
    fs::read_to_string("/proc/thread-self/net/arp").unwrap()
}

#[test]
fn nothing_is_learned_from_address_resolution() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        // It says to be the host's router; it asks who is there.
        let game = arp_request(ROUTER, GATEWAY);
        for frame in [
            &game,
            &arp_request(GUEST, GATEWAY),
            &arp_request(GUEST, ROUTER),
        ] {
            assert_denied(SLOT, Denial::Neighbour, || {
                send_frame(&network.namespace, ETHERTYPE_ARP, frame);
            });
        }
        let on_the_slot = |table: &str| {
            table
                .lines()
                .filter(|line| line.ends_with("atl4000"))
                .map(|line| line.split_whitespace().next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(on_the_slot(&neighbours()), [GUEST.to_string()]);

        host.weaken(&["goto deny_neighbour"], &[SLOT]);
        send_frame(&network.namespace, ETHERTYPE_ARP, &game);
        wait_for(
            || on_the_slot(&neighbours()).contains(&ROUTER.to_string()),
            neighbours,
        );
    });
}

#[test]
fn router_advertisements_and_all_other_ipv6_die_at_the_interface() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let routes = || fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
        let is_router = || {
            let announced = "fe800000000000000000000000000066";
            routes().lines().any(|line| line.contains(announced))
        };
        let game = router_advertisement();
        assert_denied(SLOT, Denial::Ipv6, || {
            send_frame(&network.namespace, ETHERTYPE_IPV6, &game);
        });
        assert!(!is_router());

        host.weaken(&["goto deny_"], &[SLOT]);
        setting::write("net/ipv6/conf/atl4000/accept_ra", "2").unwrap();
        setting::write("net/ipv6/conf/atl4000/disable_ipv6", "0").unwrap();
        // Its own address has to be found free before it listens.
        wait_for(
            || {
                send_frame(&network.namespace, ETHERTYPE_IPV6, &game);
                is_router()
            },
            routes,
        );
    });
}
