//! What works: the internet, from the same address in every sandbox.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::super::netlink::Netlink;
use super::super::slot::{GATEWAY, GUEST};
use super::super::{NetworkPolicy, SlotRange, create, setting};
use super::*;
use crate::host::program;

#[test]
fn a_sandbox_without_network_has_a_working_loopback_and_nothing_else() {
    on_own_host(|_| {
        let network = create(&NetworkPolicy::None, SLOT, &SlotRange::default()).unwrap();
        assert_eq!(network.resolver, None);
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
        assert_eq!(super::super::veth::live_veths().unwrap(), [0_u16; 0]);
    });
}

/// A server that sends `bytes` to whoever connects and counts what comes back.
fn exchange_server(host: &Host, bytes: usize) -> thread::JoinHandle<(IpAddr, usize)> {
    let listener = inside(&host.internet.descriptor, || {
        TcpListener::bind((SERVER, 8080)).unwrap()
    });
    thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        let mut reader = stream.try_clone().unwrap();
        let counting = thread::spawn(move || count(&mut reader));
        stream.write_all(&pattern(bytes)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        (peer.ip(), counting.join().unwrap())
    })
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..=250_u8).cycle().take(bytes).collect()
}

/// How much comes, all of it as [`pattern`] says.
fn count(reader: &mut TcpStream) -> usize {
    let mut all = Vec::new();
    reader.set_read_timeout(Some(PATIENCE)).unwrap();
    reader.read_to_end(&mut all).unwrap();
    assert!(all == pattern(all.len()), "bytes were changed on the way");
    all.len()
}

fn exchange(namespace: &OwnedFd, bytes: usize) -> usize {
    inside(namespace, || {
        let mut stream = TcpStream::connect_timeout(&(SERVER, 8080).into(), PATIENCE).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let counting = thread::spawn(move || count(&mut reader));
        stream.write_all(&pattern(bytes)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        counting.join().unwrap()
    })
}

#[test]
fn every_sandbox_has_the_same_address_and_reaches_the_internet_under_the_hosts() {
    on_own_host(|host| {
        host.ensure();
        let networks = [host.sandbox(SLOT), host.sandbox(NEIGHBOUR)];
        for network in &networks {
            assert_eq!(network.resolver, Some(GATEWAY));
            let server = exchange_server(host, 1000);
            inside(&network.namespace, || {
                assert_eq!(interfaces(), ["lo", "eth0"]);
                let inner = Netlink::open().unwrap().interface("eth0").unwrap().unwrap();
                assert_eq!(inner.mtu, Some(UPLINK_MTU));
                let disabled = setting::read("net/ipv6/conf/eth0/disable_ipv6").unwrap();
                assert_eq!(disabled, "1");
                let socket = udp((ANY, 0));
                socket.connect((SERVER, 9)).unwrap();
                assert_eq!(socket.local_addr().unwrap().ip(), GUEST);
            });
            assert_eq!(exchange(&network.namespace, 2000), 1000);
            assert_eq!(server.join().unwrap(), (HOST.into(), 2000));
        }
    });
}

#[test]
fn large_transfers_arrive_unchanged_in_both_directions_at_once() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = exchange_server(host, 16 << 20);
        assert_eq!(exchange(&network.namespace, 16 << 20), 16 << 20);
        assert_eq!(server.join().unwrap().1, 16 << 20);
    });
}

#[test]
fn datagrams_in_fragments_arrive_whole_in_both_directions() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((SERVER, 7000)));
        let client = inside(&network.namespace, || udp((ANY, 0)));
        let text = "fragment ".repeat(500);
        client.send_to(text.as_bytes(), (SERVER, 7000)).unwrap();
        let (arrived, sender) = receive(&server);
        assert!(arrived == text && sender.ip() == HOST);
        server.send_to(text.as_bytes(), sender).unwrap();
        let (answered, from) = receive(&client);
        assert!(answered == text);
        assert_eq!(from, (SERVER, 7000).into());
    });
}

#[test]
fn errors_about_a_connection_reach_the_one_who_has_it() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        // Nobody listens: the server's kernel says so, about a packet whose
        // source was translated twice on its way.
        inside(&network.namespace, || {
            let socket = udp((ANY, 0));
            socket.connect((SERVER, 7009)).unwrap();
            let pause = Duration::from_millis(200);
            socket.set_read_timeout(Some(pause)).unwrap();
            // Kernels say it only so often, to all of the machine together: ask again.
            let refused = (0..50).any(|_| {
                let asked = socket.send(b"anybody?");
                let heard = asked.and_then(|_| socket.recv(&mut [0; 10]));
                heard.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            });
            assert!(refused);
        });
    });
}

fn narrow(interface: &str) {
    let mut command = Command::new("ip");
    command.args(["link", "set", interface, "mtu", "1000"]);
    assert!(program::status(&mut command).unwrap().success());
}

#[test]
fn a_narrower_way_out_is_discovered() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        // Narrower than what the sandbox was told when it was made.
        narrow("up0");
        inside(&host.internet.descriptor, || narrow("eth0"));
        let server = exchange_server(host, 0);
        assert_eq!(exchange(&network.namespace, 1 << 20), 0);
        assert_eq!(server.join().unwrap().1, 1 << 20);
    });
}

#[test]
fn ping_works_for_anybody_inside() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        inside(&network.namespace, || {
            use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
            use rustix::net::{connect, ipproto, recv, send, socket};
            let ping = socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP)).unwrap();
            rustix::net::sockopt::set_socket_timeout(
                &ping,
                rustix::net::sockopt::Timeout::Recv,
                Some(PATIENCE),
            )
            .unwrap();
            connect(&ping, &SocketAddr::from((SERVER, 0))).unwrap();
            send(&ping, &[8, 0, 0, 0, 0, 0, 0, 1], SendFlags::empty()).unwrap();
            let mut answer = [0; 64];
            let (length, _) = recv(&ping, &mut answer, RecvFlags::empty()).unwrap();
            assert_eq!((length, answer[0]), (8, 0));
        });
    });
}
