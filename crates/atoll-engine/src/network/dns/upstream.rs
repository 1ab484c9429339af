//! The resolvers that the host uses, and so its sandboxes.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

const PORT: u16 = 53;
/// As many as the C library uses.
const MAX_UPSTREAMS: usize = 3;

/// Where the list of upstream resolvers comes from.
#[derive(Debug, Clone)]
pub(crate) enum UpstreamSource {
    /// The `nameserver` lines of a file, read again whenever it changes.
    ResolvConf(PathBuf),
    /// Always these.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "tests bring an upstream of their own")
    )]
    Fixed(Vec<SocketAddr>),
}

impl Default for UpstreamSource {
    fn default() -> Self {
        Self::ResolvConf(PathBuf::from("/etc/resolv.conf"))
    }
}

/// What tells one state of a file from the next.
type Stamp = (u64, u64, i64, i64);

/// The resolvers to ask now.
#[derive(Debug)]
pub(super) struct Upstreams {
    source: UpstreamSource,
    stamp: Option<Stamp>,
    known: Vec<SocketAddr>,
}

impl Upstreams {
    pub(super) fn new(source: UpstreamSource) -> Self {
        Self {
            source,
            stamp: None,
            known: Vec::new(),
        }
    }

    /// The resolvers in the order to ask them. A file that cannot be read
    /// now (it may be about to be replaced) leaves the list as it was.
    pub(super) fn current(&mut self) -> &[SocketAddr] {
        match &self.source {
            UpstreamSource::Fixed(list) => list,
            UpstreamSource::ResolvConf(path) => {
                let stamp = fs::metadata(path)
                    .map(|found| (found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
                    .ok();
                if stamp.is_some()
                    && stamp != self.stamp
                    && let Ok(text) = fs::read_to_string(path)
                {
                    self.known = parse(&text);
                    self.stamp = stamp;
                }
                &self.known
            }
        }
    }
}

/// The `nameserver` lines of a `resolv.conf`. Without any, this host itself, as `resolv.conf(5)` says.
fn parse(text: &str) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            if words.next() == Some("nameserver") {
                words.next().and_then(address)
            } else {
                None
            }
        })
        .take(MAX_UPSTREAMS)
        .collect();
    if found.is_empty() {
        found.push((Ipv4Addr::LOCALHOST, PORT).into());
    }
    found
}

/// An address as `resolv.conf` writes it: `fe80::1%eth0` names its interface.
fn address(text: &str) -> Option<SocketAddr> {
    let Some((address, scope)) = text.split_once('%') else {
        return text
            .parse::<IpAddr>()
            .ok()
            .map(|address| (address, PORT).into());
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = scope.parse().ok().or_else(|| interface_index(scope))?;
    Some(SocketAddrV6::new(address, PORT, 0, scope).into())
}

fn interface_index(name: &str) -> Option<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    name_to_index(any, name).ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> Vec<String> {
        parse(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_three_nameservers_are_used_in_order() {
        let text = "# made by hand\nsearch example.org\nnameserver 10.255.255.53\n  nameserver\t2001:db8::53 # second\n\
            ;nameserver 192.0.2.9\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\n";
        assert_eq!(
            written(text),
            ["10.255.255.53:53", "[2001:db8::53]:53", "192.0.2.1:53"]
        );
    }

    #[test]
    fn without_a_nameserver_the_host_itself_is_asked() {
        assert_eq!(
            written("nameserver nonsense\nsearch a\nnameserver\n"),
            ["127.0.0.1:53"]
        );
    }

    #[test]
    fn an_interface_may_be_named_or_numbered() {
        assert_eq!(
            written("nameserver fe80::1%7\nnameserver fe80::2%lo\n"),
            ["[fe80::1%7]:53", "[fe80::2%1]:53"]
        );
        assert_eq!(
            written("nameserver fe80::1%no-such-interface\n"),
            ["127.0.0.1:53"]
        );
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_missing_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        let mut upstreams = Upstreams::new(UpstreamSource::ResolvConf(path.clone()));
        assert_eq!(upstreams.current(), []);
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(upstreams.current(), ["192.0.2.1:53".parse().unwrap()]);
        fs::write(&path, "nameserver 192.0.2.2\n").unwrap();
        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(later)
            .unwrap();
        assert_eq!(upstreams.current(), ["192.0.2.2:53".parse().unwrap()]);
        fs::remove_file(&path).unwrap();
        assert_eq!(upstreams.current(), ["192.0.2.2:53".parse().unwrap()]);
    }

    proptest! {
        #[test]
        fn any_text_gives_one_to_three_resolvers(text: String) {
            prop_assert!((1..=MAX_UPSTREAMS).contains(&parse(&text).len()));
        }
    }
}
