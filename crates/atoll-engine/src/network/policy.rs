//! What a sandbox may reach: the policy object of the network.
//!
//! The order is E2B's: what is closed to all sandboxes stays closed; then
//! `allow` beats `deny`, and what neither names is open.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::cidr::Cidr;

/// Ranges no sandbox may reach, IPv4: exactly those of E2B.
pub(super) const CLOSED_IPV4: [&str; 6] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
];
/// The same, IPv6. Sandboxes have no IPv6 at all; these are for what is asked for.
const CLOSED_IPV6: [&str; 3] = ["::1/128", "fc00::/7", "fe80::/10"];

/// Entries of one list, so that a policy stays one message to the kernel.
const LIST_LIMIT: usize = 256;

/// Network access of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum NetworkPolicy {
    /// A loopback interface and nothing else.
    #[default]
    None,
    /// The internet through NAT; closed ranges, the host and other sandboxes stay closed.
    Full {
        /// Open although `deny` names it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allow: Vec<Cidr>,
        /// Closed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        deny: Vec<Cidr>,
    },
}

/// Why a policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    /// It would have no effect.
    #[error("`{asked}` lies in {closed}, which is closed to every sandbox and cannot be allowed")]
    Closed {
        /// The entry.
        asked: Cidr,
        /// The closed range around it.
        closed: Cidr,
    },
    /// More than the kernel is told at once.
    #[error("{0} entries are too many: a list holds at most {LIST_LIMIT}")]
    TooLong(usize),
}

impl NetworkPolicy {
    /// Everything that is not closed to all sandboxes.
    #[must_use]
    pub fn full() -> Self {
        Self::Full {
            allow: Vec::new(),
            deny: Vec::new(),
        }
    }

    /// Whether the sandbox has an interface besides the loopback.
    #[must_use]
    pub fn has_interface(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Refuses lists that are too long, or allow what stays closed.
    ///
    /// # Errors
    /// With the first entry that cannot be.
    pub fn validate(&self) -> Result<(), InvalidPolicy> {
        let (allow, deny) = self.lists();
        for list in [&allow, &deny] {
            if list.len() > LIST_LIMIT {
                return Err(InvalidPolicy::TooLong(list.len()));
            }
        }
        for asked in allow {
            if let Some(closed) = closed_ranges().find(|closed| closed.contains(&asked)) {
                return Err(InvalidPolicy::Closed { asked, closed });
            }
        }
        Ok(())
    }

    /// What is allowed and what is denied, for a sandbox that has an interface.
    fn lists(&self) -> (Vec<Cidr>, Vec<Cidr>) {
        match self {
            Self::None => (Vec::new(), vec![Cidr::ALL_IPV4]),
            Self::Full { allow, deny } => (allow.clone(), deny.clone()),
        }
    }

    /// Bounds of what is allowed, without overlaps.
    pub(super) fn allowed(&self) -> Vec<(Ipv4Addr, Ipv4Addr)> {
        bounds(self.lists().0)
    }

    /// Bounds of what is denied, without overlaps.
    pub(super) fn denied(&self) -> Vec<(Ipv4Addr, Ipv4Addr)> {
        bounds(self.lists().1)
    }

    /// Whether the forwarder answers: not when nothing could be done with an answer,
    /// because then a query is only a way out for what the sandbox knows.
    pub(super) fn resolves_names(&self) -> bool {
        let (allow, deny) = self.lists();
        !allow.is_empty() || !deny.contains(&Cidr::ALL_IPV4)
    }

    /// Whether a connection to `target` that stands may go on.
    pub(super) fn permits(&self, target: Ipv4Addr) -> bool {
        let (allow, deny) = self.lists();
        let target = Cidr::from(target);
        let within = |list: &[Cidr]| list.iter().any(|range| range.contains(&target));
        within(&allow) || !within(&deny)
    }
}

fn closed_ranges() -> impl Iterator<Item = Cidr> {
    CLOSED_IPV4
        .iter()
        .chain(&CLOSED_IPV6)
        .filter_map(|text| text.parse().ok())
}

/// The IPv4 ranges of `list` that no other one of it contains. Two CIDRs
/// either lie within each other or apart, so these do not overlap.
fn bounds(mut list: Vec<Cidr>) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    list.sort_unstable();
    list.dedup();
    list.iter()
        .filter(|one| {
            !list
                .iter()
                .any(|other| other != *one && other.contains(one))
        })
        .filter_map(Cidr::ipv4_bounds)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn policy(allow: &[&str], deny: &[&str]) -> NetworkPolicy {
        NetworkPolicy::Full {
            allow: list(allow),
            deny: list(deny),
        }
    }

    #[test]
    fn allow_beats_deny_beats_the_default() {
        let only = policy(&["192.0.2.0/24"], &["0.0.0.0/0"]);
        assert!(only.permits(Ipv4Addr::new(192, 0, 2, 9)));
        assert!(!only.permits(Ipv4Addr::new(192, 0, 3, 9)));
        let but = policy(&[], &["192.0.2.0/24"]);
        assert!(!but.permits(Ipv4Addr::new(192, 0, 2, 9)));
        assert!(but.permits(Ipv4Addr::new(192, 0, 3, 9)));
        assert!(NetworkPolicy::full().permits(Ipv4Addr::new(192, 0, 2, 9)));
        assert!(!NetworkPolicy::None.permits(Ipv4Addr::new(192, 0, 2, 9)));
    }

    #[test]
    fn names_are_resolved_unless_nothing_can_be_reached() {
        assert!(NetworkPolicy::full().resolves_names());
        assert!(policy(&["192.0.2.1"], &["0.0.0.0/0"]).resolves_names());
        assert!(policy(&[], &["192.0.2.0/24"]).resolves_names());
        assert!(!policy(&[], &["0.0.0.0/0"]).resolves_names());
        assert!(!NetworkPolicy::None.resolves_names());
    }

    #[test]
    fn what_stays_closed_cannot_be_allowed_in_any_notation() {
        for closed in [
            "10.0.0.5",
            "169.254.169.254",
            "192.168.7.0/24",
            "::ffff:10.0.0.1",
            "::1",
            "fd00::5",
        ] {
            let error = policy(&[closed], &[]).validate().unwrap_err();
            assert!(
                matches!(error, InvalidPolicy::Closed { .. }),
                "{closed}: {error}"
            );
        }
        assert_eq!(
            policy(&["0.0.0.0/0", "192.0.2.1"], &["10.0.0.1"]).validate(),
            Ok(())
        );
        let long = vec!["192.0.2.1"; LIST_LIMIT + 1];
        assert_eq!(
            policy(&[], &long).validate(),
            Err(InvalidPolicy::TooLong(LIST_LIMIT + 1))
        );
    }

    #[test]
    fn lists_reach_the_kernel_without_overlaps() {
        let deny = policy(
            &[],
            &[
                "192.0.2.0/24",
                "192.0.2.7",
                "192.0.2.0/24",
                "198.51.100.1",
                "2001:db8::/32",
            ],
        );
        assert_eq!(
            deny.denied(),
            [
                (Ipv4Addr::new(192, 0, 2, 0), Ipv4Addr::new(192, 0, 2, 255)),
                (
                    Ipv4Addr::new(198, 51, 100, 1),
                    Ipv4Addr::new(198, 51, 100, 1)
                ),
            ]
        );
    }

    #[test]
    fn a_policy_is_written_as_its_mode_and_its_lists() {
        let text = serde_json::to_string(&policy(&["192.0.2.1"], &[])).unwrap();
        assert_eq!(text, r#"{"mode":"full","allow":["192.0.2.1/32"]}"#);
        assert_eq!(
            serde_json::from_str::<NetworkPolicy>(&text).unwrap(),
            policy(&["192.0.2.1"], &[])
        );
        assert_eq!(
            serde_json::to_string(&NetworkPolicy::None).unwrap(),
            r#"{"mode":"none"}"#
        );
    }
}
