//! The loop that carries queries to the upstreams and answers back.
//!
//! One thread, one `poll`. Each UDP query gets a socket of its own, connected
//! to the upstream: the kernel then takes answers from that address alone, and
//! the port is as random as the query's number.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::DnsSockets;
use super::connection::Connection;
use super::message::{MAX_MESSAGE, Query};
use super::upstream::{UpstreamSource, Upstreams};

/// UDP queries under way at once; more are answered with a failure.
const MAX_QUERIES: usize = 64;
/// TCP connections open at once; more wait in the kernel.
const MAX_CONNECTIONS: usize = 8;
/// How long one query may take, all upstreams together.
pub(super) const QUERY_BOUND: Duration = Duration::from_secs(5);
/// Datagrams taken before anything else gets its turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// How long to look away from sockets when the host has no descriptor left for them.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// The DNS forwarder of one sandbox.
pub(crate) struct DnsForwarder {
    sockets: DnsSockets,
    stop: OwnedFd,
    upstreams: Upstreams,
    queries: Vec<PendingQuery>,
    connections: Vec<Connection>,
    /// Whatever arrives is read into this.
    buffer: Vec<u8>,
    /// New connections are not looked at before this.
    accept_after: Option<Instant>,
}

/// A UDP query that waits for its answer.
struct PendingQuery {
    client: SocketAddr,
    query: Query,
    /// Connected to the upstream asked last; absent when that one could not be.
    socket: Option<UdpSocket>,
    /// How many upstreams were asked.
    attempts: usize,
    /// When to ask the next.
    next_attempt: Instant,
    /// When to give up.
    deadline: Instant,
}

/// Whether a query still waits.
#[derive(PartialEq, Eq)]
enum Progress {
    Waiting,
    Finished,
}

impl DnsForwarder {
    /// Starts the forwarder on a thread of its own, until `stop` becomes
    /// readable (an eventfd written to, or a pipe whose other end is closed).
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn spawn(sockets: DnsSockets, stop: OwnedFd) -> io::Result<JoinHandle<()>> {
        Self::spawn_with(sockets, UpstreamSource::default(), stop)
    }

    /// As [`Self::spawn`], with upstreams other than the host's.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn spawn_with(
        sockets: DnsSockets,
        upstreams: UpstreamSource,
        stop: OwnedFd,
    ) -> io::Result<JoinHandle<()>> {
        let forwarder = Self {
            sockets,
            stop,
            upstreams: Upstreams::new(upstreams),
            queries: Vec::new(),
            connections: Vec::new(),
            buffer: vec![0; MAX_MESSAGE],
            accept_after: None,
        };
        thread::Builder::new()
            .name("atoll-dns".to_owned())
            .spawn(move || {
                if let Err(error) = forwarder.run() {
                    tracing::error!("the DNS forwarder of this sandbox ended: {error}");
                }
            })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.stop {
                return Ok(());
            }
            let now = Instant::now();
            self.accept_after = self.accept_after.filter(|after| now < *after);
            self.carry_queries(&ready.queries, now);
            self.carry_connections(&ready.connections, now);
            if ready.udp {
                self.take_queries(now);
            }
            if ready.tcp {
                self.take_connections(now);
            }
        }
    }

    /// Sleeps until something is ready or due.
    fn wait(&self) -> io::Result<Ready> {
        let now = Instant::now();
        let query_times = self
            .queries
            .iter()
            .map(|query| query.next_attempt.min(query.deadline));
        let connection_times = self.connections.iter().map(Connection::deadline);
        let due = query_times
            .chain(connection_times)
            .chain(self.accept_after)
            .min();
        let timeout = due.map(|due| due.saturating_duration_since(now));
        let timeout = timeout
            .map(Timespec::try_from)
            .transpose()
            .map_err(io::Error::other)?;

        let accepting = self.connections.len() < MAX_CONNECTIONS && self.accept_after.is_none();
        let listening = if accepting {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut watched = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.sockets.udp, PollFlags::IN),
            PollFd::new(&self.sockets.tcp, listening),
        ];
        let sockets = self
            .queries
            .iter()
            .filter_map(|query| query.socket.as_ref());
        watched.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        watched.extend(self.connections.iter().map(|connection| {
            let (descriptor, events) = connection.interest();
            PollFd::from_borrowed_fd(descriptor, events)
        }));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }

        let mut ready = watched.iter().map(|one| !one.revents().is_empty());
        let mut next = || ready.next().unwrap_or(false);
        Ok(Ready {
            stop: next(),
            udp: next(),
            tcp: next() && accepting,
            queries: self
                .queries
                .iter()
                .map(|query| query.socket.is_some() && next())
                .collect(),
            connections: self.connections.iter().map(|_| next()).collect(),
        })
    }

    /// Takes answers for UDP queries, asks the next upstream where one is late.
    fn carry_queries(&mut self, ready: &[bool], now: Instant) {
        let mut readiness = ready.iter();
        let Self {
            queries,
            upstreams,
            buffer,
            sockets,
            ..
        } = self;
        queries.retain_mut(|pending| {
            let is_ready = readiness.next().copied().unwrap_or(false);
            pending.carry(is_ready, upstreams.current(), buffer, &sockets.udp, now)
                == Progress::Waiting
        });
    }

    fn carry_connections(&mut self, ready: &[bool], now: Instant) {
        let upstreams = self.upstreams.current().to_vec();
        let connections = std::mem::take(&mut self.connections);
        let carried = connections
            .into_iter()
            .zip(ready)
            .filter_map(|(connection, ready)| {
                if *ready {
                    connection.advance(&upstreams, now)
                } else if connection.deadline() <= now {
                    connection.expire(now)
                } else {
                    Some(connection)
                }
            });
        self.connections = carried.collect();
    }

    /// Takes new UDP queries from the sandbox.
    fn take_queries(&mut self, now: Instant) {
        for _ in 0..DATAGRAMS_PER_TURN {
            // Errors here are echoes of answers the sandbox did not want.
            let Ok((length, client)) = self.sockets.udp.recv_from(&mut self.buffer) else {
                return;
            };
            let Some(mut query) = self.buffer.get(..length).and_then(Query::parse) else {
                continue;
            };
            let id = random_id();
            if self.queries.len() >= MAX_QUERIES || id.is_none() {
                send_answer(&self.sockets.udp, &query.failure(), client);
                continue;
            }
            query.set_upstream_id(id.unwrap_or_default());
            let mut pending = PendingQuery {
                client,
                query,
                socket: None,
                attempts: 0,
                next_attempt: now,
                deadline: now + QUERY_BOUND,
            };
            pending.ask_next(self.upstreams.current(), now);
            self.queries.push(pending);
        }
    }

    fn take_connections(&mut self, now: Instant) {
        while self.connections.len() < MAX_CONNECTIONS {
            match self.sockets.tcp.accept() {
                Ok((client, _)) => {
                    if client.set_nonblocking(true).is_ok() {
                        self.connections.push(Connection::new(client, now));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors, most likely: the connection stays
                    // in the kernel, and looking again at once would spin.
                    self.accept_after = Some(now + EXHAUSTED_PAUSE);
                    return;
                }
            }
        }
    }
}

/// What became ready, in the order of the lists.
struct Ready {
    stop: bool,
    udp: bool,
    tcp: bool,
    queries: Vec<bool>,
    connections: Vec<bool>,
}

impl PendingQuery {
    fn carry(
        &mut self,
        is_ready: bool,
        upstreams: &[SocketAddr],
        buffer: &mut [u8],
        udp: &UdpSocket,
        now: Instant,
    ) -> Progress {
        if is_ready {
            match self.receive(buffer) {
                Ok(Some(answer)) => {
                    send_answer(udp, &answer, self.client);
                    return Progress::Finished;
                }
                Ok(None) => {}
                // Such as "connection refused": nobody listens there.
                Err(_) => self.next_attempt = now,
            }
        }
        if now >= self.deadline {
            send_answer(udp, &self.query.failure(), self.client);
            return Progress::Finished;
        }
        if now >= self.next_attempt {
            self.ask_next(upstreams, now);
        }
        Progress::Waiting
    }

    /// The answer, if the datagram that arrived is one.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Vec<u8>>> {
        let Some(socket) = &self.socket else {
            return Ok(None);
        };
        match socket.recv(buffer) {
            Ok(length) => Ok(buffer
                .get(..length)
                .and_then(|answer| self.query.accept_answer(answer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks the next upstream, round and round until the deadline.
    fn ask_next(&mut self, upstreams: &[SocketAddr], now: Instant) {
        let turn = self
            .attempts
            .checked_rem(upstreams.len())
            .and_then(|turn| upstreams.get(turn));
        self.socket = turn.and_then(|upstream| send_query(*upstream, &self.query.message).ok());
        self.attempts += 1;
        // One that cannot be asked is not waited for, but a list of only such must not spin.
        let first_round = self.attempts < upstreams.len();
        let wait = if self.socket.is_none() && first_round {
            Duration::ZERO
        } else {
            attempt_bound(upstreams.len())
        };
        self.next_attempt = now + wait;
    }
}

/// How long one upstream may take when there are `count`, so that each gets
/// its turn and a lone one is asked twice.
pub(super) fn attempt_bound(count: usize) -> Duration {
    QUERY_BOUND / u32::try_from(count.max(2)).unwrap_or(u32::MAX)
}

/// A number that nobody outside can guess; `None` when the kernel has none.
pub(super) fn random_id() -> Option<u16> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).ok()?;
    Some(u16::from_ne_bytes(bytes))
}

fn send_query(upstream: SocketAddr, message: &[u8]) -> io::Result<UdpSocket> {
    let any: SocketAddr = if upstream.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(upstream)?;
    socket.send(message)?;
    Ok(socket)
}

/// A sandbox that does not take its answer asks again.
fn send_answer(udp: &UdpSocket, answer: &[u8], client: SocketAddr) {
    let _ = udp.send_to(answer, client);
}
