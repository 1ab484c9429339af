//! The network as a sandbox meets it, with root, on hosts made for the purpose.
//!
//! Each test runs in a network namespace of its own that plays the host, with
//! a second one behind it that plays everything else: the internet, private
//! ranges, a metadata service, foreign DNS servers. So nothing of the real host
//! is touched, no packet leaves it, and whatever a failed test leaves ends
//! with its threads. The nft tables, forwarding switch and interfaces are real.
//!
//! Every wall has a positive control: [`Host::weaken`] loads the same rules
//! without the lines that make the wall, and the same packet arrives.

mod dns;
mod egress;
mod host_wide;
mod lists;
mod raw;
mod reach;
mod slots;
mod spoofing;
mod timings;
mod usage;
mod walls;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::host_wide::HostWide;
use super::membership::Member;
use super::namespace::NewNamespace;
use super::netlink::Netlink;
use super::slot::interface_name;
use super::{
    Denial, NetworkPolicy, NetworkUsage, SandboxNetwork, SlotRange, create, firewall, namespace,
    nft, setting,
};

const SLOT: u16 = 4000;
const NEIGHBOUR: u16 = 4001;

/// Address of the host towards its internet.
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// Open addresses out there.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 101, 7);
/// Addresses out there that sandboxes must not reach: private ranges and a metadata service.
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
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// A host with an internet behind it.
struct Host {
    internet: NewNamespace,
    directory: tempfile::TempDir,
}

/// Runs `test` on a thread whose network namespace is a host of its own.
fn on_own_host(test: impl FnOnce(&Host) + Send) {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests make network namespaces: run them as root"
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
        for address in CLOSED.into_iter().chain([SERVER, OTHER_SERVER]) {
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
            .ensure(&SlotRange::default(), || Ok(Vec::new()))
            .unwrap();
    }

    fn release(&self) {
        HostWide::at(&self.record()).release().unwrap();
    }

    #[expect(clippy::unused_self, reason = "a sandbox is one of a host")]
    fn sandbox(&self, slot: u16) -> SandboxNetwork {
        create(&NetworkPolicy::full(), slot, &SlotRange::default()).unwrap()
    }

    /// Takes a wall away: the rules without the lines that contain one of
    /// `missing`, for the sandboxes in `slots`.
    #[expect(clippy::unused_self, reason = "these are the rules of a host")]
    fn weaken(&self, missing: &[&str], slots: &[u16]) {
        let text = firewall::ruleset(&SlotRange::default());
        for part in missing {
            assert!(text.contains(part), "no rule says `{part}`");
        }
        let is_left = |line: &&str| !missing.iter().any(|part| line.contains(part));
        let weakened: Vec<&str> = text.lines().filter(is_left).collect();
        nft::replace_tables(&(weakened.join("\n") + "\n")).unwrap();
        for slot in slots {
            setting::write(
                &format!("net/ipv4/conf/{}/rp_filter", interface_name(*slot)),
                "0",
            )
            .unwrap();
            Member::of(*slot)
                .join(address_of(*slot), &NetworkPolicy::full())
                .unwrap();
        }
    }
}

/// Address of a slot on the host.
fn address_of(slot: u16) -> Ipv4Addr {
    SlotRange::default().address(slot).unwrap()
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

fn usage(slot: u16) -> NetworkUsage {
    super::usage(slot).unwrap().unwrap()
}

/// How many packets of the sandbox in `slot` were dropped for this reason.
fn denied(slot: u16, denial: Denial) -> u64 {
    usage(slot)
        .denied
        .get(&denial)
        .map_or(0, |traffic| traffic.packets)
}

/// Asserts that `call` is counted as `denial` of the sandbox in `slot`.
fn assert_denied<T>(slot: u16, denial: Denial, call: impl FnOnce() -> T) -> T {
    let before = denied(slot, denial);
    let result = call();
    wait_for(
        || denied(slot, denial) > before,
        || format!("nothing was denied as {denial:?}: {:?}", usage(slot)),
    );
    result
}

/// Waits until the kernel has done what it was asked to; a test fails when it does not.
fn wait_for(happened: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "{}", otherwise());
        thread::yield_now();
    }
}

fn udp(address: impl Into<SocketAddr>) -> UdpSocket {
    let socket = UdpSocket::bind(address.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends one datagram from within `namespace`.
fn say(namespace: &OwnedFd, target: (Ipv4Addr, u16), text: &str) {
    say_from(namespace, ANY, target, text);
}

fn say_from(namespace: &OwnedFd, source: Ipv4Addr, target: (Ipv4Addr, u16), text: &str) {
    inside(namespace, || {
        udp((source, 0)).send_to(text.as_bytes(), target).unwrap()
    });
}

fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buffer = [0; 9000];
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
