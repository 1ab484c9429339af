//! Names: through the forwarder, for its own sandbox alone, within bounds.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::super::dns::UpstreamSource;
use super::super::dns::tests::{answer, query};
use super::super::{Denial, DnsForwarder};
use super::*;

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

/// Asks as a resolver does: the kernel may lose a datagram of a conversation
/// that begins on two processors at once.
fn ask_again_until_answered(socket: &UdpSocket, asked: &[u8], buffer: &mut [u8]) -> usize {
    let start = Instant::now();
    socket.set_read_timeout(Some(PATIENCE / 10)).unwrap();
    loop {
        socket.send(asked).unwrap();
        match socket.recv(buffer) {
            Ok(length) => return length,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
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
                let length = ask_again_until_answered(&socket, &asked, &mut buffer);
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
fn a_tunnel_through_names_is_narrow_and_counted() {
    on_own_host(|host| {
        host.ensure();
        let mut network = host.sandbox(SLOT);
        let gateway = network.resolver.unwrap();
        let upstream = FakeUpstream::start(|_| None);
        let _forwarder = Forwarder::start(&mut network, vec![upstream.address]);
        inside(&network.namespace, || {
            // One socket, so one conversation for connection tracking.
            let socket = udp((ANY, 0));
            socket.connect((gateway, 53)).unwrap();
            let mut buffer = [0; 1500];
            // An ordinary pace is not noticed.
            for id in 0..300 {
                socket.send(&query(id, "example.org")).unwrap();
                socket.recv(&mut buffer).unwrap();
            }
        });
        assert_eq!(denied(SLOT, Denial::Dns), 0);
        assert_eq!(usage(SLOT).dns.packets, 300);
        inside(&network.namespace, || {
            let socket = udp((ANY, 0));
            socket.connect((gateway, 53)).unwrap();
            for id in 0..5000 {
                socket.send(&query(id, "secret.example.org")).unwrap();
            }
        });
        wait_for(
            || {
                let counted = usage(SLOT);
                counted.dns.packets + denied(SLOT, Denial::Dns) >= 5300
            },
            || format!("{:?}", usage(SLOT)),
        );
        assert!(denied(SLOT, Denial::Dns) > 1000, "{:?}", usage(SLOT));

        // A query larger than any that a resolver sends is not passed on.
        let mut large = query(7, "large.example.org");
        large.resize(600, 0);
        let sent = inside(&network.namespace, || {
            thread::sleep(Duration::from_millis(50)); // a few more are allowed by then
            let socket = udp((ANY, 0));
            socket.connect((gateway, 53)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            socket.send(&large).unwrap();
            socket.recv(&mut [0; 1500]).is_err()
        });
        assert!(sent);
    });
}

#[test]
fn a_foreign_dns_server_is_an_ordinary_server() {
    on_own_host(|host| {
        host.ensure();
        let network = host.sandbox(SLOT);
        let server = inside(&host.internet.descriptor, || udp((ANY, 53)));
        say(&network.namespace, (SERVER, 53), "a foreign resolver");
        assert_eq!(receive(&server).0, "a foreign resolver");
        assert_denied(SLOT, Denial::ClosedRange, || {
            say(
                &network.namespace,
                (CLOSED[0], 53),
                "the company's resolver",
            );
        });
        assert_silent(&server);
    });
}
