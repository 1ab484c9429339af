//! The bytes of a connection, and its two ways to end.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use atoll_siphon::nearby;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::pulse::Pulse;

/// When a peer that is gone without a word is asked whether it is still there,
/// how often, and how many times.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES_MAX: u32 = 4;

/// What is still read, and thrown away, of a client that sends on after its
/// answer. To close before would take the answer from it.
const LINGER_BYTES_MAX: usize = 8 << 20;
const LINGER_BOUND: Duration = Duration::from_secs(2);

/// Makes a fresh connection fit for use.
pub(super) fn prepare(stream: &TcpStream, peer: IpAddr) -> io::Result<()> {
    // Without it an answer may wait 40 ms for an acknowledgement.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES_MAX)?;
    if peer.to_canonical().is_loopback() {
        nearby::without_pacing(stream);
        nearby::with_a_short_queue(stream);
    }
    Ok(())
}

/// Says that there is no room, as far as that goes without waiting. A client
/// that expects TLS sees a connection that is closed.
pub(super) fn turn_away(stream: &TcpStream) {
    const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
        content-type: application/json\r\ncontent-length: 56\r\nconnection: close\r\n\r\n\
        {\"code\":503,\"message\":\"too many connections; try later\"}";
    // A fresh connection has room for this; if not, closing says enough.
    let _ = stream.try_write(NO_ROOM);
}

/// A connection whose pulse is taken.
pub(crate) struct Observed {
    stream: TcpStream,
    pulse: Arc<Pulse>,
    closing: Closing,
    stall: Stall,
}

enum Closing {
    NotYet,
    Lingering { left: usize, end: Pin<Box<Sleep>> },
    Done,
}

impl Observed {
    /// `stall` is how long the client may take nothing of what it is sent.
    pub(super) fn new(stream: TcpStream, pulse: Arc<Pulse>, stall: Duration) -> Self {
        Self {
            stream,
            pulse,
            closing: Closing::NotYet,
            stall: Stall {
                bound: stall,
                alarm: None,
            },
        }
    }

    /// The socket below, for whoever moves bytes past our memory. Who does that
    /// has to see by itself that they move.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// How long the client may take nothing of what it is sent.
    pub(crate) fn stall_bound(&self) -> Duration {
        self.stall.bound
    }

    /// What became of a write, unless the client has taken nothing for too long.
    fn written(
        &mut self,
        polled: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.stall.alarm = None;
        } else if self.stall.poll_overdue(context).is_ready() {
            self.pulse.break_all();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

/// Since when a client takes nothing.
struct Stall {
    bound: Duration,
    /// Set while it does not.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let end = Instant::now() + self.bound;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(end)));
        alarm.as_mut().poll(context)
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if self.pulse.is_broken() {
            // The client gets a reset, which nobody takes for an end. A socket
            // that refuses is closed already.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Observed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.pulse.heard();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Observed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Closes politely: says that nothing more comes, and waits a moment until
    /// the client has seen it.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.closing {
                Closing::NotYet => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
                    this.closing = if this.pulse.is_tunnel() {
                        // What the client still sends is for somebody.
                        Closing::Done
                    } else {
                        Closing::Lingering {
                            left: LINGER_BYTES_MAX,
                            end: Box::pin(sleep_until(Instant::now() + LINGER_BOUND)),
                        }
                    };
                }
                Closing::Lingering { left, end } => {
                    if end.as_mut().poll(context).is_ready() || *left == 0 {
                        this.closing = Closing::Done;
                        continue;
                    }
                    let mut scratch = [0; 16 * 1024];
                    let mut buffer = ReadBuf::new(&mut scratch);
                    let read = ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer));
                    let length = buffer.filled().len();
                    if read.is_err() || length == 0 {
                        this.closing = Closing::Done;
                    } else {
                        *left = left.saturating_sub(length);
                    }
                }
                Closing::Done => return Poll::Ready(Ok(())),
            }
        }
    }
}
