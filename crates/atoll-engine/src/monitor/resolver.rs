//! The DNS forwarder as the monitor has it: a thread that can be stopped for the
//! moments in which this process must have one thread, and started again.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::network::{DnsForwarder, DnsSockets};

/// How long a thread that has finished may still be listed by the kernel.
const THREAD_GONE_BOUND: Duration = Duration::from_secs(1);

/// The forwarder of one sandbox, if it has a network.
pub(super) struct Resolver {
    sockets: Option<DnsSockets>,
    thread: Option<(OwnedFd, JoinHandle<()>)>,
}

impl Resolver {
    /// Starts it on `sockets`.
    pub(super) fn start(sockets: Option<DnsSockets>) -> io::Result<Self> {
        let mut resolver = Self {
            sockets,
            thread: None,
        };
        resolver.go_on()?;
        Ok(resolver)
    }

    /// Starts it again, if it does not run.
    pub(super) fn go_on(&mut self) -> io::Result<()> {
        if let (Some(sockets), None) = (&self.sockets, &self.thread) {
            let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
            let thread = DnsForwarder::spawn(sockets.try_clone()?, stop.try_clone()?)?;
            self.thread = Some((stop, thread));
        }
        Ok(())
    }

    /// Stops it; when this returns, the calling thread is the only one of this process.
    /// Queries under way are dropped, new ones wait in their sockets.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        let Some((stop, thread)) = self.thread.take() else {
            return Ok(());
        };
        rustix::io::write(&stop, &1_u64.to_ne_bytes())?;
        let _ = thread.join(); // one that panicked has ended too
        let start = Instant::now();
        // `join` returns a moment before the kernel has forgotten the thread.
        while fs::read_dir("/proc/self/task")?.count() > 1 {
            if start.elapsed() > THREAD_GONE_BOUND {
                return Err(io::Error::other("a thread of the monitor does not end"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
