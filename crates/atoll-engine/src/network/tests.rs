//! The network as a sandbox meets it, with root, on hosts made for the purpose.
//!
//! Each test runs in a network namespace of its own that plays the host, with
//! a second one behind it that plays the internet. So nothing of the real host
//! is touched, no packet leaves it, and whatever a failed test leaves ends
//! with its threads. The nft table, forwarding switch and interfaces are real.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketType, connect, ipproto, send, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use super::dns::UpstreamSource;
use super::dns::tests::{answer, query};
use super::host_wide::HostWide;
use super::namespace::NewNamespace;
use super::{
    DnsForwarder, NetworkError, SandboxNetwork, SlotRange, create, forwarding, live_veths,
    namespace, nft, reap, setting, uplink_probe,
};
use crate::NetworkMode;
use crate::network::netlink::Netlink;

const SLOT: u16 = 4000;
const NEIGHBOUR: u16 = 4001;

/// Address of the host towards its internet.
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// An open address out there.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Addresses out there that sandboxes must not reach.
const CLOSED: [Ipv4Addr; 6] = [
    Ipv4Addr::new(10, 1, 2, 3),
    Ipv4Addr::new(100, 64, 0, 1),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(172, 16, 1, 1),
    Ipv4Addr::new(172, 31, 255, 254),
    Ipv4Addr::new(192, 168, 1, 1),
];
const UPLINK_MTU: u32 = 1400;
/// Longer than anything here takes; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// A host with an internet behind it.
struct Host {
    internet: NewNamespace,
    directory: tempfile::TempDir,
}

/// Runs `test` on a thread whose network namespace is a host of its own.
fn on_own_host(test: impl FnOnce(&Host) + Send) {
    assert!(
        rustix::process::geteuid().is_root(),
        "run the tests as root: `cargo xtask test` does"
    );
    thread::scope(|scope| {
        let ended = scope
            .spawn(|| {
                crate::host::process::new_network_namespace().unwrap();
                test(&Host::new());
            })
            .join();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

impl Host {
    /// Connects the calling thread's namespace to a new one as its internet.
    fn new() -> Self {
        setting::write("net/ipv4/ip_forward", "0").unwrap();
        let mut host = Netlink::open().unwrap();
        let mut internet = namespace::create().unwrap();
        let far_end = LinkMessageBuilder::<LinkUnspec>::new()
            .name("eth0")
            .mtu(UPLINK_MTU)
            .setns_by_fd(internet.descriptor.as_raw_fd())
            .build();
        let pair = LinkVeth::new("up0", "eth0")
            .mtu(UPLINK_MTU)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(far_end)))
            .build();
        host.add_link(pair).unwrap();
        for (netlink, name, address) in [
            (&mut host, "up0", HOST),
            (&mut internet.netlink, "eth0", ROUTER),
        ] {
            let loopback = netlink.interface("lo").unwrap().unwrap().index;
            let index = netlink.interface(name).unwrap().unwrap().index;
            netlink.set_up(loopback).unwrap();
            netlink.add_address(index, address, 24).unwrap();
            netlink.set_up(index).unwrap();
        }
        host.add_default_route(ROUTER).unwrap();
        // Whatever leaves the host unmasked would find its way back, and be seen.
        internet.netlink.add_default_route(HOST).unwrap();
        let index = internet.netlink.interface("eth0").unwrap().unwrap().index;
        for address in CLOSED.into_iter().chain([SERVER]) {
            internet.netlink.add_address(index, address, 32).unwrap();
        }
        Self {
            internet,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn record(&self) -> PathBuf {
        self.directory.path().join("network.json")
    }

    fn ensure(&self) {
        HostWide::at(&self.record())
            .ensure(&SlotRange::default())
            .unwrap();
    }

    fn release(&self) {
        HostWide::at(&self.record()).release().unwrap();
    }

    fn sandbox(&self, slot: u16) -> SandboxNetwork {
        create(NetworkMode::Full, slot, &SlotRange::default()).unwrap()
    }
}

/// Runs `call` on a thread inside `namespace`.
fn inside<T: Send>(namespace: &OwnedFd, call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            call()
        });
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn interfaces() -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

/// How many packets the rules with this comment have dropped.
fn dropped(comment: &str) -> u64 {
    let listing = nft::run(
        "list our table",
        &["--json", "list", "table", "inet", "atoll"],
        "",
    )
    .unwrap();
    let listing: Value = serde_json::from_str(&listing).unwrap();
    let rules = listing["nftables"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item.get("rule"));
    let matching = rules.filter(|rule| rule["comment"] == comment);
    let counters = matching
        .flat_map(|rule| rule["expr"].as_array().unwrap())
        .filter_map(|part| part.get("counter"));
    counters
        .map(|counter| counter["packets"].as_u64().unwrap())
        .sum()
}

/// Asserts that `call` makes the rules called `comment` drop something.
fn assert_drops<T>(comment: &str, call: impl FnOnce() -> T) -> T {
    let before = dropped(comment);
    let result = call();
    assert!(dropped(comment) > before, "`{comment}` dropped nothing");
    result
}

fn udp(address: impl Into<SocketAddr>) -> UdpSocket {
    let socket = UdpSocket::bind(address.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn send_from(namespace: &OwnedFd, source: Ipv4Addr, target: (Ipv4Addr, u16), text: &str) {
    inside(namespace, || {
        udp((source, 0)).send_to(text.as_bytes(), target).unwrap()
    });
}

fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buffer = [0; 1500];
    let (length, sender) = socket.recv_from(&mut buffer).unwrap();
    (
        String::from_utf8_lossy(&buffer[..length]).into_owned(),
        sender,
    )
}

fn assert_silent(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let error = socket.recv_from(&mut [0; 1500]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
}

const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

#[test]
fn a_sandbox_without_network_has_a_working_loopback_and_nothing_else() {
    on_own_host(|_| {
        let network = create(NetworkMode::None, SLOT, &SlotRange::default()).unwrap();
        assert_eq!((network.resolver, network.address), (None, None));
        assert!(network.dns.is_none());
        let flags = rustix::io::fcntl_getfd(&network.namespace).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        inside(&network.namespace, || {
            assert_eq!(interfaces(), ["lo"]);
            assert_eq!(
                setting::read("net/ipv4/ip_unprivileged_port_start").unwrap(),
                "0"
            );
            assert_eq!(
                setting::read("net/ipv4/ping_group_range").unwrap(),
                "0\t2147483647"
            );
            let listener = TcpListener::bind("127.0.0.1:80").unwrap();
            TcpStream::connect(listener.local_addr().unwrap())
                .unwrap()
                .write_all(b"hello")
                .unwrap();
            let mut text = [0; 5];
            listener.accept().unwrap().0.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"hello");
            let error = UdpSocket::bind((ANY, 0))
                .unwrap()
                .send_to(b"x", (SERVER, 9))
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable);
        });
        assert_eq!(live_veths().unwrap(), [0_u16; 0]);
    });
}

#[test]
fn no_sandbox_gets_an_interface_while_nothing_filters_it() {
    on_own_host(|host| {
        let refused = create(NetworkMode::Full, SLOT, &SlotRange::default());
        assert!(matches!(refused, Err(NetworkError::FirewallAbsent)));
        assert_eq!(live_veths().unwrap(), [0_u16; 0]);
        host.ensure();
        host.sandbox(SLOT);
    });
}

#[test]
fn a_sandbox_reaches_the_internet_under_the_hosts_address() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        assert_eq!(network.resolver, Some(Ipv4Addr::new(10, 87, 62, 129)));
        assert_eq!(network.address, Some(Ipv4Addr::new(10, 87, 62, 130)));
        let listener = inside(&host.internet.descriptor, || {
            TcpListener::bind((SERVER, 8080)).unwrap()
        });
        let echo = thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            let mut text = [0; 4];
            stream.read_exact(&mut text).unwrap();
            stream.write_all(&text).unwrap();
            peer.ip()
        });
        inside(&network.namespace, || {
            assert_eq!(interfaces(), ["lo", "eth0"]);
            let inner = Netlink::open().unwrap().interface("eth0").unwrap().unwrap();
            assert_eq!(inner.mtu, Some(UPLINK_MTU));
            assert_eq!(
                setting::read("net/ipv6/conf/eth0/disable_ipv6").unwrap(),
                "1"
            );
            let mut stream = TcpStream::connect_timeout(&(SERVER, 8080).into(), PATIENCE).unwrap();
            stream.write_all(b"ping").unwrap();
            let mut text = [0; 4];
            stream.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"ping");
        });
        assert_eq!(echo.join().unwrap(), HOST);
    });
}

#[test]
fn closed_ranges_and_forged_sources_get_nowhere() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let own = network.address.unwrap();
        let server = inside(&host.internet.descriptor, || udp((ANY, 7000)));

        for closed in CLOSED {
            assert_drops("closed range", || {
                send_from(&network.namespace, own, (closed, 7000), "closed");
            });
        }
        let other_slot = Ipv4Addr::new(10, 87, 0, 2);
        assert_drops("another slot", || {
            send_from(&network.namespace, own, (other_slot, 7000), "slot");
        });

        // With rights that no sandbox has: addresses of another slot, and of nobody here.
        for forged in [other_slot, Ipv4Addr::new(203, 0, 113, 77)] {
            inside(&network.namespace, || {
                let mut netlink = Netlink::open().unwrap();
                let index = netlink.interface("eth0").unwrap().unwrap().index;
                netlink.add_address(index, forged, 32).unwrap();
            });
            assert_drops("forged source", || {
                send_from(&network.namespace, forged, (SERVER, 7000), "forged");
            });
        }

        // What is allowed arrives, and nothing before it did.
        send_from(&network.namespace, own, (SERVER, 7000), "allowed");
        let (text, sender) = receive(&server);
        assert_eq!((text.as_str(), sender.ip()), ("allowed", HOST.into()));
        assert_silent(&server);

        // Nobody out there can speak first.
        let target = inside(&network.namespace, || udp((own, 7001)));
        assert_drops("not asked for", || {
            send_from(&host.internet.descriptor, ROUTER, (own, 7001), "hello");
        });
        assert_silent(&target);
    });
}

#[test]
fn the_host_and_other_sandboxes_are_out_of_reach() {
    on_own_host(|host| {
        host.ensure();
        let (network, neighbour) = (host.sandbox(SLOT), host.sandbox(NEIGHBOUR));
        let (own, gateway) = (network.address.unwrap(), network.resolver.unwrap());
        let _listener = TcpListener::bind((ANY, 8080)).unwrap();
        let service = udp((ANY, 7000));
        for target in [gateway, HOST, neighbour.resolver.unwrap()] {
            assert_drops("the host", || {
                send_from(&network.namespace, own, (target, 7000), "host");
            });
            assert_drops("the host", || {
                inside(&network.namespace, || {
                    let refused = TcpStream::connect_timeout(
                        &(target, 8080).into(),
                        Duration::from_millis(200),
                    );
                    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
                });
            });
        }
        assert_drops("the host", || {
            inside(&network.namespace, || {
                let ping =
                    socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP)).unwrap();
                connect(&ping, &SocketAddr::from((gateway, 0))).unwrap();
                send(
                    &ping,
                    &[8, 0, 0, 0, 0, 0, 0, 1],
                    rustix::net::SendFlags::empty(),
                )
                .unwrap();
            });
        });
        assert_silent(&service);

        let inner = inside(&neighbour.namespace, || udp((ANY, 7000)));
        assert_drops("another sandbox", || {
            send_from(
                &network.namespace,
                own,
                (neighbour.address.unwrap(), 7000),
                "neighbour",
            );
        });
        assert_silent(&inner);
    });
}

/// A resolver on the host's loopback that answers every query, over UDP and TCP.
struct FakeUpstream {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl FakeUpstream {
    /// `noise` comes before each UDP answer.
    fn start(noise: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).unwrap();
        udp.set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (udp_stop, tcp_stop) = (Arc::clone(&stop), Arc::clone(&stop));
        let threads = vec![
            thread::spawn(move || {
                let mut buffer = [0; 1500];
                while !udp_stop.load(Ordering::Relaxed) {
                    let Ok((length, client)) = udp.recv_from(&mut buffer) else {
                        continue;
                    };
                    if let Some(noise) = noise(&buffer[..length]) {
                        udp.send_to(&noise, client).unwrap();
                    }
                    udp.send_to(&answer(&buffer[..length]), client).unwrap();
                }
            }),
            thread::spawn(move || {
                while let Ok((mut stream, _)) = tcp.accept() {
                    if tcp_stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let asked = read_framed(&mut stream);
                    write_framed(&mut stream, &answer(&asked));
                }
            }),
        ];
        Self {
            address,
            stop,
            threads,
        }
    }
}

impl Drop for FakeUpstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message).unwrap();
    message
}

fn write_framed(stream: &mut TcpStream, message: &[u8]) {
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, message].concat()).unwrap();
}

/// A forwarder that ends with the test.
struct Forwarder {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    fn start(network: &mut SandboxNetwork, upstreams: Vec<SocketAddr>) -> Self {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let sockets = network.dns.take().unwrap();
        let source = UpstreamSource::Fixed(upstreams);
        let thread = DnsForwarder::spawn_with(sockets, source, stop.try_clone().unwrap()).unwrap();
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || thread::panicking());
    }
}

#[test]
fn names_are_resolved_through_the_gateway_over_udp_and_tcp() {
    on_own_host(|host| {
        host.ensure();
        let mut network = host.sandbox(SLOT);
        let gateway = network.resolver.unwrap();
        // Every answer comes after a forged one with another number.
        let upstream = FakeUpstream::start(|asked| {
            let mut forged = answer(asked);
            forged[0] ^= 0xff;
            Some(forged)
        });
        let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let _forwarder = Forwarder::start(&mut network, vec![nobody, upstream.address]);
        inside(&network.namespace, || {
            let socket = udp((ANY, 0));
            socket.connect((gateway, 53)).unwrap();
            let mut buffer = [0; 1500];
            // Garbage gets no answer: the first one is for the query after it.
            socket.send(b"garbage").unwrap();
            socket.send(&answer(&query(1, "an.answer"))).unwrap();
            for id in [7, 8] {
                let asked = query(id, "example.org");
                socket.send(&asked).unwrap();
                let length = socket.recv(&mut buffer).unwrap();
                assert_eq!(buffer[..length], answer(&asked));
            }

            let mut stream = TcpStream::connect_timeout(&(gateway, 53).into(), PATIENCE).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            for id in [9, 10] {
                let asked = query(id, "tcp.example.org");
                write_framed(&mut stream, &asked);
                assert_eq!(read_framed(&mut stream), answer(&asked));
            }
            write_framed(&mut stream, b"garbage");
            assert_eq!(
                stream.read(&mut [0; 1]).unwrap(),
                0,
                "garbage ends a connection"
            );
        });
    });
}

#[test]
fn a_forwarder_serves_its_own_sandbox_alone_and_has_bounds() {
    on_own_host(|host| {
        host.ensure();
        let (mut network, neighbour) = (host.sandbox(SLOT), host.sandbox(NEIGHBOUR));
        let gateway = network.resolver.unwrap();
        // An upstream that takes queries and never answers.
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let _forwarder = Forwarder::start(&mut network, vec![silent.local_addr().unwrap()]);
        inside(&network.namespace, || {
            let socket = udp((ANY, 0));
            socket.connect((gateway, 53)).unwrap();
            for id in 0..64 {
                socket.send(&query(id, "slow.example.org")).unwrap();
            }
            let mut failure = query(64, "more.example.org");
            socket.send(&failure).unwrap();
            failure[2] |= 0x80;
            failure[3] = 2;
            let mut buffer = [0; 1500];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], failure, "the 65th query fails at once");
        });
        // It reached the host, yet not a socket: the forwarder hears its own interface only.
        inside(&neighbour.namespace, || {
            let socket = UdpSocket::bind((ANY, 0)).unwrap();
            socket.connect((gateway, 53)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            socket.send(&query(1, "example.org")).unwrap();
            assert!(socket.recv(&mut [0; 1500]).is_err());
        });
    });
}

#[test]
fn what_a_dead_owner_left_is_replaced_reaped_and_listed() {
    on_own_host(|host| {
        host.ensure();
        // A child of the test would keep a namespace alive just like this descriptor does.
        let dead = host.sandbox(SLOT);
        drop(dead.dns);
        let fresh = host.sandbox(SLOT);
        inside(&dead.namespace, || assert_eq!(interfaces(), ["lo"]));
        inside(&fresh.namespace, || {
            assert_eq!(interfaces(), ["lo", "eth0"]);
        });
        let _other = host.sandbox(NEIGHBOUR);
        assert_eq!(live_veths().unwrap(), [SLOT, NEIGHBOUR]);
        reap(SLOT).unwrap();
        reap(SLOT).unwrap();
        assert_eq!(live_veths().unwrap(), [NEIGHBOUR]);
        inside(&fresh.namespace, || assert_eq!(interfaces(), ["lo"]));
    });
}

#[test]
fn a_create_that_fails_leaves_no_interface() {
    on_own_host(|host| {
        host.ensure();
        // The host's own resolver listens everywhere.
        let _resolver = udp((ANY, 53));
        let error = create(NetworkMode::Full, SLOT, &SlotRange::default()).unwrap_err();
        assert!(
            matches!(
                &error,
                NetworkError::DnsPort {
                    protocol: "udp",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("listens on all addresses"));
        assert_eq!(live_veths().unwrap(), [0_u16; 0]);
    });
}

#[test]
fn an_interface_that_is_no_veth_is_not_touched() {
    on_own_host(|host| {
        host.ensure();
        let bridge = LinkMessageBuilder::<rtnetlink::LinkBridge>::new("atl4000").build();
        Netlink::open().unwrap().add_link(bridge).unwrap();
        assert!(
            matches!(reap(SLOT), Err(NetworkError::ForeignInterface(name)) if name == "atl4000")
        );
        let refused = create(NetworkMode::Full, SLOT, &SlotRange::default());
        assert!(matches!(refused, Err(NetworkError::ForeignInterface(_))));
        assert!(interfaces().contains(&"atl4000".to_owned()));
    });
}

#[test]
fn the_host_is_as_before_when_the_last_sandbox_is_gone() {
    on_own_host(|host| {
        for before in ["0", "1"] {
            setting::write("net/ipv4/ip_forward", before).unwrap();
            host.ensure();
            assert!(forwarding::is_on().unwrap());
            assert!(nft::rule_count().unwrap() > 0);
            host.ensure();
            host.release();
            assert_eq!(setting::read("net/ipv4/ip_forward").unwrap(), before);
            assert_eq!(nft::rule_count().unwrap(), 0);
            let tables = nft::run("list tables", &["list", "tables"], "").unwrap();
            assert_eq!(tables, "");
            assert!(!host.record().exists());
            host.release();
        }
    });
}

#[test]
fn an_ensure_that_was_killed_at_any_step_is_finished_or_undone() {
    on_own_host(|host| {
        host.ensure();
        let done = fs::read_to_string(host.record()).unwrap();
        let mut record: Value = serde_json::from_str(&done).unwrap();
        record["rules"] = Value::Null;
        let about_to = record.to_string();
        host.release();

        let states = [
            ("0", Table::Absent),
            ("0", Table::Loaded),
            ("1", Table::Loaded),
        ];
        for (forwarding, table) in states {
            for next in [Host::ensure, Host::release] {
                fs::write(host.record(), &about_to).unwrap();
                setting::write("net/ipv4/ip_forward", forwarding).unwrap();
                if table == Table::Loaded {
                    nft::replace_table(&super::firewall::ruleset(&SlotRange::default())).unwrap();
                }
                next(host);
                if host.record().exists() {
                    assert_eq!(fs::read_to_string(host.record()).unwrap(), done);
                }
                host.release();
                assert!(
                    !forwarding::is_on().unwrap(),
                    "forwarding was ours to switch off"
                );
                assert_eq!(nft::rule_count().unwrap(), 0);
            }
        }
    });
}

#[test]
fn the_intent_is_recorded_before_the_first_effect() {
    on_own_host(|host| {
        let record = host.record();
        let host_wide = HostWide::at(&record);
        let result = host_wide.ensure_with(&SlotRange::default(), |_| {
            let intent: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
            assert_eq!(intent["forwarding_before"], "off");
            assert_eq!(intent["rules"], Value::Null);
            assert!(
                !forwarding::is_on().unwrap(),
                "never forwarding without rules"
            );
            Err(NetworkError::NftMissing)
        });
        assert!(matches!(result, Err(NetworkError::NftMissing)));
        assert!(!forwarding::is_on().unwrap());
        assert!(record.exists());
        host.release();
        assert!(!record.exists());
    });
}

#[derive(Clone, Copy, PartialEq)]
enum Table {
    Absent,
    Loaded,
}

#[test]
fn ensure_repairs_what_others_changed_and_trusts_no_record_of_another_boot() {
    on_own_host(|host| {
        host.ensure();
        let rules = nft::rule_count().unwrap();
        nft::run("flush", &["flush", "table", "inet", "atoll"], "").unwrap();
        setting::write("net/ipv4/ip_forward", "0").unwrap();
        host.ensure();
        assert_eq!(nft::rule_count().unwrap(), rules);
        assert!(forwarding::is_on().unwrap());

        let mut record: Value = serde_json::from_slice(&fs::read(host.record()).unwrap()).unwrap();
        record["boot"] = "another".into();
        for stale in [record.to_string(), "{ half a rec".to_owned()] {
            fs::write(host.record(), stale).unwrap();
            host.release();
            assert!(forwarding::is_on().unwrap(), "not known to be ours");
            assert_eq!(nft::rule_count().unwrap(), 0);
            assert!(!host.record().exists());
        }
    });
}

#[test]
fn one_host_has_one_slot_range_while_sandboxes_live() {
    on_own_host(|host| {
        host.ensure();
        let record = host.record();
        let other: SlotRange = "10.99.0.0/16".parse().unwrap();
        let network = host.sandbox(SLOT);
        let refused = HostWide::at(&record).ensure(&other);
        assert!(matches!(refused, Err(NetworkError::RangeConflict { .. })));
        drop(network);
        reap(SLOT).unwrap();
        HostWide::at(&record).ensure(&other).unwrap();
        let network = create(NetworkMode::Full, SLOT, &other).unwrap();
        assert_eq!(network.address, Some(Ipv4Addr::new(10, 99, 62, 130)));
    });
}

#[test]
fn the_probe_sees_the_uplink_and_what_blocks_it() {
    on_own_host(|_| {
        let report = uplink_probe(&SlotRange::default()).unwrap();
        let route = report.default_route.unwrap();
        assert_eq!(
            (route.interface.as_str(), route.gateway),
            ("up0", Some(ROUTER))
        );
        assert!(!report.forwarding);
        assert_eq!(report.blocking_chains, Some(Vec::new()));
        assert_eq!(report.hidden_routes, [""; 0]);

        let docker = "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }";
        nft::run("load a foreign table", &["--file", "-"], docker).unwrap();
        setting::write("net/ipv4/ip_forward", "1").unwrap();
        let report = uplink_probe(&"203.0.113.0/24".parse().unwrap()).unwrap();
        assert!(report.forwarding);
        let chains: Vec<String> = report
            .blocking_chains
            .unwrap()
            .into_iter()
            .map(|found| found.chain)
            .collect();
        assert_eq!(chains, ["FORWARD"]);
        assert_eq!(report.hidden_routes, ["203.0.113.0/24 dev up0"]);
    });
}

#[test]
fn a_missing_or_refusing_nft_says_what_to_do() {
    assert!(
        NetworkError::NftMissing
            .hint()
            .unwrap()
            .contains("apt-get install nftables")
    );
    on_own_host(|_| {
        let error = nft::run("load nonsense", &["--file", "-"], "nonsense").unwrap_err();
        assert!(error.to_string().contains("syntax error"), "{error}");
    });
}

/// `cargo test -p atoll-engine network::tests::timings -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn timings() {
    fn measure<T>(name: &str, mut step: impl FnMut(u16) -> T) -> Vec<T> {
        let mut times = Vec::new();
        let mut results = Vec::new();
        for turn in 0..20 {
            let start = Instant::now();
            results.push(step(turn));
            times.push(start.elapsed());
        }
        times.sort_unstable();
        println!(
            "{name}: p50 {:?}, min {:?}, max {:?}",
            times[10], times[0], times[19]
        );
        results
    }
    on_own_host(|host| {
        let start = Instant::now();
        host.ensure();
        println!("first ensure: {:?}", start.elapsed());
        measure("ensure again", |_| host.ensure());
        measure("create None", |_| {
            create(NetworkMode::None, SLOT, &SlotRange::default()).unwrap()
        });
        let made = measure("create Full", |turn| host.sandbox(SLOT + turn));
        // The dead owners' namespaces live on; their DNS sockets do not.
        let dead: Vec<OwnedFd> = made.into_iter().map(|network| network.namespace).collect();
        let fresh = measure("create Full over a stale veth", |turn| {
            host.sandbox(SLOT + turn)
        });
        measure("reap", |turn| reap(SLOT + turn).unwrap());
        drop((dead, fresh));
        let start = Instant::now();
        host.release();
        println!("release: {:?}", start.elapsed());
    });
}
