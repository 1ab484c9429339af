//! Connections whose other end is on this host. Nothing gets lost or is late
//! there, so they need none of what makes connections over a network fair.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_congestion};

/// Every kernel has it, for everybody, and it sends what it has. Others, which a
/// host may prefer for its network, pace with timers.
const UNPACED: &str = "reno";

/// Bytes that may wait to be sent. As many as the kernel allows would go through
/// main memory between two processes, instead of a cache that both have.
const QUEUE_BYTES: usize = 512 * 1024;

/// Sends without pauses. What the kernel refuses only costs time.
pub fn without_pacing(socket: impl AsFd) {
    let _ = set_tcp_congestion(socket, UNPACED);
}

/// Keeps little waiting on the way to a process that may be as fast as this one.
pub fn with_a_short_queue(socket: impl AsFd) {
    let _ = set_socket_send_buffer_size(socket, QUEUE_BYTES);
}

/// Lets whoever waits for bytes sleep until `bytes` of them have come, or the end has.
/// For who knows that so many will.
pub fn with_rare_news(socket: impl AsFd, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: the option's value is the integer on the stack, of the size that is said.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0),
        );
    }
}
