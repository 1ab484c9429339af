//! Which host a network belongs to, where a machine has several: each network
//! namespace that runs Atoll is a host of its own, with rules, a forwarding
//! switch and interfaces of its own.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::net::{AddressFamily, SocketType, socket};
use serde::{Deserialize, Serialize};

use crate::host::process::within_network;

/// A network namespace that cannot be confused with another one of the same boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct HostNetwork {
    /// A number that the kernel gives once per boot.
    pub(super) cookie: u64,
    /// Its inode, by which processes in it are found. The kernel gives it again.
    inode: u64,
}

impl HostNetwork {
    /// The network namespace of the calling thread.
    pub(crate) fn current() -> io::Result<Self> {
        Ok(Self {
            cookie: cookie()?,
            inode: fs::metadata("/proc/thread-self/ns/net")?.ino(),
        })
    }

    /// Whether a process is in it.
    pub(super) fn is_inhabited(&self) -> io::Result<bool> {
        // Names that are no pids have no namespaces either.
        let inhabited = fs::read_dir("/proc")?.flatten().any(|entry| {
            let path = entry.path().join("ns/net");
            let same_inode = fs::metadata(&path).is_ok_and(|found| found.ino() == self.inode);
            same_inode
                && fs::File::open(&path)
                    .and_then(|network| within_network(network, cookie))
                    .is_ok_and(|cookie| cookie == self.cookie)
        });
        Ok(inhabited)
    }
}

fn cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: the pointers are to a number of the stated length and to that
    // length; the kernel writes no more than it and keeps no reference.
    let result = unsafe {
        libc::getsockopt(
            any.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_itself_and_inhabited() {
        let here = HostNetwork::current().unwrap();
        assert_eq!(here, HostNetwork::current().unwrap());
        assert!(here.is_inhabited().unwrap());
    }
}
