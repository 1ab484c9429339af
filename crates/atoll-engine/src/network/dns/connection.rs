//! One TCP connection of a sandbox to its forwarder.
//!
//! ```text
//! ReadQuery → SendQuery → ReadAnswer → WriteAnswer → ReadQuery …
//!      any upstream failure ↘ next upstream, or "server failure" ↗
//! ```
//!
//! One query at a time; what a sandbox sends meanwhile waits in the kernel.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::forwarder::{QUERY_BOUND, attempt_bound, random_id};
use super::message::Query;

/// A connection between polls.
#[derive(Debug)]
pub(super) struct Connection {
    client: TcpStream,
    step: Step,
    /// When the current step has taken too long.
    deadline: Instant,
}

#[derive(Debug)]
enum Step {
    ReadQuery {
        received: Vec<u8>,
    },
    SendQuery {
        exchange: Exchange,
        sent: usize,
    },
    ReadAnswer {
        exchange: Exchange,
        received: Vec<u8>,
    },
    WriteAnswer {
        framed: Vec<u8>,
        sent: usize,
    },
}

/// A query on its way to one upstream.
#[derive(Debug)]
struct Exchange {
    query: Query,
    upstream: TcpStream,
    /// Those still to be tried.
    others: Vec<SocketAddr>,
    /// For each of them.
    bound: Duration,
}

impl Connection {
    pub(super) fn new(client: TcpStream, now: Instant) -> Self {
        Self {
            client,
            step: Step::ReadQuery {
                received: Vec::new(),
            },
            deadline: now + QUERY_BOUND,
        }
    }

    /// The one descriptor it waits for, and what for.
    pub(super) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        match &self.step {
            Step::ReadQuery { .. } => (self.client.as_fd(), PollFlags::IN),
            Step::SendQuery { exchange, .. } => (exchange.upstream.as_fd(), PollFlags::OUT),
            Step::ReadAnswer { exchange, .. } => (exchange.upstream.as_fd(), PollFlags::IN),
            Step::WriteAnswer { .. } => (self.client.as_fd(), PollFlags::OUT),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Goes on after its descriptor became ready; `None` ends the connection.
    pub(super) fn advance(self, upstreams: &[SocketAddr], now: Instant) -> Option<Self> {
        let Self {
            mut client,
            step,
            deadline,
        } = self;
        match step {
            Step::ReadQuery { mut received } => {
                match read_frame(&mut client, &mut received).ok()? {
                    None => Some(Self {
                        client,
                        step: Step::ReadQuery { received },
                        deadline,
                    }),
                    Some(message) => {
                        // A sandbox that sends garbage loses its connection.
                        let mut query = Query::parse(&message)?;
                        query.set_upstream_id(random_id()?);
                        let bound = attempt_bound(upstreams.len());
                        Some(Self::ask(client, query, upstreams.to_vec(), bound, now))
                    }
                }
            }
            Step::SendQuery { mut exchange, sent } => {
                let framed = frame(&exchange.query.message);
                match write_some(&mut exchange.upstream, &framed, sent) {
                    Ok(sent) if sent < framed.len() => Some(Self {
                        client,
                        step: Step::SendQuery { exchange, sent },
                        deadline,
                    }),
                    Ok(_) => Some(Self {
                        client,
                        step: Step::ReadAnswer {
                            exchange,
                            received: Vec::new(),
                        },
                        deadline,
                    }),
                    Err(_) => Some(Self::reask(client, exchange, now)),
                }
            }
            Step::ReadAnswer {
                mut exchange,
                mut received,
            } => {
                let answer = match read_frame(&mut exchange.upstream, &mut received) {
                    Ok(None) => {
                        return Some(Self {
                            client,
                            step: Step::ReadAnswer { exchange, received },
                            deadline,
                        });
                    }
                    Ok(Some(answer)) => exchange.query.accept_answer(&answer),
                    Err(_) => None,
                };
                Some(match answer {
                    Some(answer) => Self::reply(client, &answer, now),
                    None => Self::reask(client, exchange, now),
                })
            }
            Step::WriteAnswer { framed, sent } => {
                let sent = write_some(&mut client, &framed, sent).ok()?;
                if sent < framed.len() {
                    return Some(Self {
                        client,
                        step: Step::WriteAnswer { framed, sent },
                        deadline,
                    });
                }
                Some(Self::new(client, now))
            }
        }
    }

    /// Goes on after its deadline; `None` ends the connection.
    pub(super) fn expire(self, now: Instant) -> Option<Self> {
        match self.step {
            Step::ReadQuery { .. } | Step::WriteAnswer { .. } => None,
            Step::SendQuery { exchange, .. } | Step::ReadAnswer { exchange, .. } => {
                Some(Self::reask(self.client, exchange, now))
            }
        }
    }

    fn reask(client: TcpStream, exchange: Exchange, now: Instant) -> Self {
        let Exchange {
            query,
            others,
            bound,
            ..
        } = exchange;
        Self::ask(client, query, others, bound, now)
    }

    /// Passes `query` to the first of `upstreams` that can be connected to.
    fn ask(
        client: TcpStream,
        query: Query,
        mut upstreams: Vec<SocketAddr>,
        bound: Duration,
        now: Instant,
    ) -> Self {
        while !upstreams.is_empty() {
            if let Ok(upstream) = start_connecting(upstreams.remove(0)) {
                let exchange = Exchange {
                    query,
                    upstream,
                    others: upstreams,
                    bound,
                };
                return Self {
                    client,
                    step: Step::SendQuery { exchange, sent: 0 },
                    deadline: now + bound,
                };
            }
        }
        Self::reply(client, &query.failure(), now)
    }

    fn reply(client: TcpStream, answer: &[u8], now: Instant) -> Self {
        Self {
            client,
            step: Step::WriteAnswer {
                framed: frame(answer),
                sent: 0,
            },
            deadline: now + QUERY_BOUND,
        }
    }
}

/// A message with its length before it. No message is longer than the length can say.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend(message.iter().take(usize::from(length)));
    framed
}

/// Reads on; the message once it is whole. Never reads beyond it.
fn read_frame(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    loop {
        let wanted = match received.first_chunk::<2>() {
            None => 2,
            Some(length) => 2 + usize::from(u16::from_be_bytes(*length)),
        };
        if received.len() >= wanted && wanted > 2 {
            return Ok(Some(received.split_off(2)));
        }
        if received.len() >= wanted {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an empty DNS message",
            ));
        }
        let mut part = vec![0; wanted - received.len()];
        match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => received.extend(part.iter().take(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes on from `sent`; how much is written then.
fn write_some(stream: &mut TcpStream, framed: &[u8], mut sent: usize) -> io::Result<usize> {
    while let Some(rest) = framed.get(sent..).filter(|rest| !rest.is_empty()) {
        match stream.write(rest) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// A connection that may still be coming up; writing to it tells.
fn start_connecting(upstream: SocketAddr) -> io::Result<TcpStream> {
    let family = if upstream.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &upstream) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno.into()),
    }
}
