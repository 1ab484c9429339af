//! A network namespace of its own for a sandbox.
//!
//! It belongs to the host's user namespace: root inside the sandbox can
//! neither change interfaces nor open raw sockets in it, and needs neither,
//! because the settings written here let anybody bind low ports and ping.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use super::error::{NetworkError, kernel};
use super::netlink::Netlink;
use super::setting;
use crate::host::process::new_network_namespace;
use crate::host::{HostObject, creates};

/// How long a thread that has finished may still be listed by the kernel.
const THREAD_GONE_BOUND: Duration = Duration::from_secs(1);

/// A fresh namespace with a working loopback interface.
pub(super) struct NewNamespace {
    /// Keeps it alive; closed on exec.
    pub(super) descriptor: OwnedFd,
    /// A socket that speaks to the kernel inside it.
    pub(super) netlink: Netlink,
}

/// Makes a namespace. The thread this needs is gone when the call returns.
pub(super) fn create() -> Result<NewNamespace, NetworkError> {
    creates(HostObject::NetworkNamespace, || {
        let worker = thread::Builder::new()
            .name("atoll-netns".to_owned())
            .spawn(|| (gettid().as_raw_nonzero(), make()))
            .map_err(kernel("start the thread that makes the network namespace"))?;
        let (thread_id, made) = worker
            .join()
            .map_err(|_| NetworkError::NamespaceThread("panicked"))?;
        wait_until_gone(thread_id.get())?;
        made
    })
}

/// Moves the calling thread into a new namespace and prepares it.
fn make() -> Result<NewNamespace, NetworkError> {
    new_network_namespace().map_err(kernel("make a network namespace"))?;
    // `File::open` sets CLOEXEC.
    let descriptor =
        File::open("/proc/thread-self/ns/net").map_err(kernel("open the new network namespace"))?;

    setting::write("net/ipv4/ip_unprivileged_port_start", "0")?;
    setting::write("net/ipv4/ping_group_range", "0 2147483647")?;
    // For interfaces made from now on, so for `eth0` but not for `lo`:
    // sandboxes have no IPv6 uplink yet, and an address would only mislead.
    setting::write_if_present("net/ipv6/conf/default/disable_ipv6", "1")?;

    let mut netlink = Netlink::open()?;
    let loopback = netlink
        .interface("lo")
        .map_err(kernel("find the loopback interface"))?;
    let loopback = loopback.ok_or(NetworkError::NamespaceThread("found no loopback interface"))?;
    netlink
        .set_up(loopback.index)
        .map_err(kernel("switch the loopback interface on"))?;
    Ok(NewNamespace {
        descriptor: descriptor.into(),
        netlink,
    })
}

/// `join` returns a moment before the kernel has forgotten the thread, and
/// user namespaces may only be entered by a process that has one thread.
fn wait_until_gone(thread_id: i32) -> Result<(), NetworkError> {
    let listed = format!("/proc/self/task/{thread_id}");
    let deadline = Instant::now() + THREAD_GONE_BOUND;
    while Path::new(&listed).exists() {
        if Instant::now() > deadline {
            return Err(NetworkError::NamespaceThread("does not end"));
        }
        thread::yield_now();
    }
    Ok(())
}
