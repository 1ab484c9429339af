//! What is closed, and that it is the wall that closes it.

use std::io;
use std::net::{Ipv6Addr, TcpListener, TcpStream};

use rustix::net::{AddressFamily, SendFlags, SocketType, connect, ipproto, send, socket};

use super::super::slot::GATEWAY;
use super::super::{Denial, NetworkError, nft, setting, veth};
use super::*;

#[test]
fn no_sandbox_gets_an_interface_while_nothing_filters_it() {
    on_own_host(|host| {
        let refused = create(&NetworkPolicy::full(), SLOT, &SlotRange::default());
        assert!(matches!(refused, Err(NetworkError::FirewallAbsent)));
        assert_eq!(veth::live_veths().unwrap(), [0_u16; 0]);
        host.ensure();
        host.sandbox(SLOT);
    });
}

#[test]
fn closed_ranges_are_closed_to_every_way_of_asking() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((ANY, 7000)));
        let _web = inside(&host.internet.descriptor, || {
            TcpListener::bind((ANY, 80)).unwrap()
        });
        for closed in CLOSED {
            assert_denied(SLOT, Denial::ClosedRange, || {
                say(&network.namespace, (closed, 7000), "closed");
            });
            // The same address as IPv6 writes it.
            assert_denied(SLOT, Denial::ClosedRange, || {
                inside(&network.namespace, || {
                    let socket = udp((Ipv6Addr::UNSPECIFIED, 0));
                    let mapped = closed.to_ipv6_mapped();
                    socket.send_to(b"mapped", (mapped, 7000)).unwrap();
                });
            });
            assert_denied(SLOT, Denial::ClosedRange, || {
                inside(&network.namespace, || {
                    let bound = Duration::from_millis(100);
                    let refused = TcpStream::connect_timeout(&(closed, 80).into(), bound);
                    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
                });
            });
        }
        assert_silent(&server);
        say(&network.namespace, (SERVER, 7000), "open");
        assert_eq!(receive(&server).0, "open");

        host.weaken(&["ip daddr @closed"], &[SLOT]);
        for closed in CLOSED {
            say(&network.namespace, (closed, 7000), "now open");
            assert_eq!(receive(&server).0, "now open", "{closed}");
        }
    });
}

#[test]
fn broadcasts_and_multicasts_reach_nobody() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let targets = [
            Ipv4Addr::new(224, 0, 0, 251),
            Ipv4Addr::BROADCAST,
            Ipv4Addr::new(203, 0, 113, 255),
        ];
        let listener = udp((ANY, 7000));
        for target in targets {
            assert_denied(SLOT, Denial::ClosedRange, || {
                inside(&network.namespace, || {
                    let socket = udp((ANY, 0));
                    socket.set_broadcast(true).unwrap();
                    socket.send_to(b"everybody", (target, 7000)).unwrap();
                });
            });
        }
        assert_silent(&listener);
        host.weaken(&["fib daddr type != unicast", "goto deny_host"], &[SLOT]);
        inside(&network.namespace, || {
            let socket = udp((ANY, 0));
            socket.set_broadcast(true).unwrap();
            socket
                .send_to(b"everybody", (Ipv4Addr::BROADCAST, 7000))
                .unwrap();
        });
        assert_eq!(receive(&listener).0, "everybody");
    });
}

#[test]
fn the_host_is_out_of_reach_by_all_of_its_addresses() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let web = TcpListener::bind((ANY, 8080)).unwrap();
        let service = udp((ANY, 7000));
        for target in [GATEWAY, HOST] {
            assert_denied(SLOT, Denial::Host, || {
                say(&network.namespace, (target, 7000), "host");
            });
            assert_denied(SLOT, Denial::Host, || {
                inside(&network.namespace, || {
                    let bound = Duration::from_millis(100);
                    let refused = TcpStream::connect_timeout(&(target, 8080).into(), bound);
                    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
                });
            });
            assert_denied(SLOT, Denial::Host, || {
                inside(&network.namespace, || {
                    let ping = socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP))
                        .unwrap();
                    connect(&ping, &SocketAddr::from((target, 0))).unwrap();
                    send(&ping, &[8, 0, 0, 0, 0, 0, 0, 1], SendFlags::empty()).unwrap();
                });
            });
        }
        assert_silent(&service);

        host.weaken(&["goto deny_host", "fib daddr type != unicast"], &[SLOT]);
        say(&network.namespace, (HOST, 7000), "host");
        assert_eq!(receive(&service).0, "host");
        inside(&network.namespace, || {
            TcpStream::connect_timeout(&(HOST, 8080).into(), PATIENCE).unwrap()
        });
        web.accept().unwrap();
    });
}

#[test]
fn a_scan_of_the_host_and_of_all_slots_finds_nothing_and_is_counted() {
    on_own_host(|host| {
        host.ensure();
        let (network, neighbour) = (host.sandbox(SLOT), host.sandbox(NEIGHBOUR));
        let inner = inside(&neighbour.namespace, || udp((ANY, 7000)));
        let service = udp((ANY, 7000));
        inside(&network.namespace, || {
            let socket = udp((ANY, 0));
            for port in 6900..7100 {
                socket.send_to(b"scan", (HOST, port)).unwrap();
            }
            for slot in 3900..4100 {
                socket.send_to(b"scan", (address_of(slot), 7000)).unwrap();
            }
        });
        wait_for(
            || denied(SLOT, Denial::Host) == 200 && denied(SLOT, Denial::OtherSandbox) == 200,
            || format!("{:?}", usage(SLOT)),
        );
        assert_silent(&inner);
        assert_silent(&service);
        assert_eq!(usage(NEIGHBOUR).denied.len(), 0, "it did nothing");
    });
}

#[test]
fn another_sandbox_is_out_of_reach() {
    on_own_host(|host| {
        host.ensure();
        let (network, neighbour) = (host.sandbox(SLOT), host.sandbox(NEIGHBOUR));
        let inner = inside(&neighbour.namespace, || udp((ANY, 7000)));
        assert_denied(SLOT, Denial::OtherSandbox, || {
            say(
                &network.namespace,
                (address_of(NEIGHBOUR), 7000),
                "neighbour",
            );
        });
        assert_silent(&inner);

        let walls = [
            "goto deny_other_sandbox",
            "ip daddr @closed",
            "goto deny_not_asked_for",
        ];
        host.weaken(&walls, &[SLOT, NEIGHBOUR]);
        say(
            &network.namespace,
            (address_of(NEIGHBOUR), 7000),
            "neighbour",
        );
        let (text, sender) = receive(&inner);
        assert_eq!(
            (text.as_str(), sender.ip()),
            ("neighbour", address_of(SLOT).into())
        );
    });
}

#[test]
fn a_redirection_of_the_host_opens_nothing() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let private = inside(&host.internet.descriptor, || udp((CLOSED[0], 7000)));
        let service = udp((ANY, 7000));
        let rules = format!(
            "table ip nat {{ chain sent_elsewhere {{ type nat hook prerouting priority dstnat;
                ip daddr {SERVER} udp dport 7001 dnat to {}:7000
                ip daddr {SERVER} udp dport 7002 redirect to :7000
            }}\n}}\n",
            CLOSED[0]
        );
        nft::run("load a foreign table", &["--file", "-"], &rules).unwrap();
        assert_denied(SLOT, Denial::ClosedRange, || {
            say(&network.namespace, (SERVER, 7001), "to a private range");
        });
        assert_denied(SLOT, Denial::Host, || {
            say(&network.namespace, (SERVER, 7002), "to the host");
        });
        assert_silent(&private);
        assert_silent(&service);

        host.weaken(&["ip daddr @closed", "goto deny_host"], &[SLOT]);
        say(&network.namespace, (SERVER, 7001), "to a private range");
        assert_eq!(receive(&private).0, "to a private range");
        say(&network.namespace, (SERVER, 7002), "to the host");
        assert_eq!(receive(&service).0, "to the host");
    });
}

#[test]
fn nobody_can_speak_to_a_sandbox_first() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let target = inside(&network.namespace, || udp((ANY, 7001)));
        let address = address_of(SLOT);
        let from_outside = || say_from(&host.internet.descriptor, ROUTER, (address, 7001), "hello");
        let from_the_host = || udp((ANY, 0)).send_to(b"hello", (address, 7001));
        assert_denied(SLOT, Denial::NotAskedFor, from_outside);
        assert_denied(SLOT, Denial::NotAskedFor, || {
            assert_eq!(
                from_the_host().unwrap_err().kind(),
                io::ErrorKind::PermissionDenied
            );
        });
        assert_silent(&target);

        host.weaken(&["goto deny_not_asked_for"], &[SLOT]);
        from_outside();
        assert_eq!(receive(&target).0, "hello");
        from_the_host().unwrap();
        assert_eq!(receive(&target).0, "hello");
    });
}

#[test]
fn the_rules_are_not_the_last_wall() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let private = inside(&host.internet.descriptor, || udp((CLOSED[0], 7000)));
        nft::run("flush everything", &["flush", "ruleset"], "").unwrap();
        assert_eq!(setting::read("net/ipv4/ip_forward").unwrap(), "1");
        // The untranslated source has no way back through this interface, so
        // the kernel drops it by itself.
        say(&network.namespace, (CLOSED[0], 7000), "unfiltered");
        assert_silent(&private);
        setting::write("net/ipv4/conf/atl4000/rp_filter", "0").unwrap();
        say(&network.namespace, (CLOSED[0], 7000), "unfiltered");
        assert_eq!(receive(&private).0, "unfiltered");
    });
}
