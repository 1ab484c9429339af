//! How many connections there are, and how many from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts connections.
#[derive(Debug)]
pub(super) struct Admission {
    all_max: usize,
    each_max: usize,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// One connection's place, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    admission: Arc<Admission>,
    peer: IpAddr,
}

impl Admission {
    pub(super) fn new(all_max: usize, each_max: usize) -> Arc<Self> {
        Arc::new(Self {
            all_max,
            each_max,
            present: Mutex::default(),
        })
    }

    /// A place for a connection from `peer`, if there is one.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let peer = counted_as(peer);
        let mut present = self.lock();
        if present.all >= self.all_max {
            return None;
        }
        let of_peer = present.by_peer.entry(peer).or_default();
        // All clients of this host share its address, as do those of a proxy on it.
        if !peer.is_loopback() && *of_peer >= self.each_max {
            return None;
        }
        *of_peer += 1;
        present.all += 1;
        Some(Place {
            admission: Arc::clone(self),
            peer,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut present = self.admission.lock();
        present.all -= 1;
        if let Some(of_peer) = present.by_peer.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                present.by_peer.remove(&self.peer);
            }
        }
    }
}

/// One client has as many IPv6 addresses as it likes, in one network.
fn counted_as(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let admission = Admission::new(5, 2);
        let enter = |peer: &str| admission.enter(peer.parse().unwrap());
        let first = enter("10.0.0.1").unwrap();
        let _second = enter("10.0.0.1").unwrap();
        assert!(enter("::ffff:10.0.0.1").is_none(), "the same address");
        let _other = enter("2001:db8::1").unwrap();
        let _its_neighbour = enter("2001:db8::2").unwrap();
        assert!(enter("2001:db8::3").is_none(), "the same network");
        let last = enter("10.0.0.2").unwrap();
        assert!(enter("10.0.0.3").is_none(), "all are taken");
        drop(last);
        drop(first);
        let _back = enter("10.0.0.1").unwrap();
        assert!(enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.3").is_some());
    }

    #[test]
    fn this_host_may_have_all() {
        let admission = Admission::new(3, 1);
        let enter = || admission.enter("127.0.0.1".parse().unwrap());
        let held: Vec<_> = (0..3).map(|_| enter().unwrap()).collect();
        assert!(enter().is_none());
        drop(held);
        assert!(admission.lock().by_peer.is_empty());
    }
}
