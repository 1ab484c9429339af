//! The rules that every sandbox with a network lives under.
//!
//! One text for the whole host, the same however many sandboxes there are.
//! What differs from sandbox to sandbox lies in sets and maps whose keys begin
//! with the name of its interface (`membership` fills them): its address on
//! this host, its lists, its counters.
//!
//! ```text
//! from a sandbox:  arrival (address translated) → tracking → judgement (new
//!                  connections only) → forward or input → departure (NAT)
//! to a sandbox:    tracking → forward or output → delivery (translated back)
//! ```
//!
//! Inside, every sandbox has the same address, so that a checkpoint can be
//! restored anywhere. The translation to the address of its slot is stateless:
//! one lookup per packet, before connection tracking sees it.

use super::policy::CLOSED_IPV4;
use super::slot::{GATEWAY, GUEST, INTERFACE_PREFIX, SlotRange};
use super::usage::Denial;
use crate::config::{GUEST_PORT, PASSAGE_PORT};

/// Our table in each family, for all sandboxes of all homes of this host.
pub(super) const TABLE: &str = "atoll";

/// Names of the sets and maps, as `membership` fills them.
pub(super) const SENT: &str = "sent";
pub(super) const RECEIVED: &str = "received";
pub(super) const DNS: &str = "dns";
pub(super) const ALLOWED: &str = "allowed";
pub(super) const REFUSED: &str = "refused";

/// Chain that rewrites the address within an ICMP error; `nft` has no words for its rule.
pub(super) const INNER_SOURCE: &str = "inner_source";

/// DNS packets of one sandbox: an installation of packages stays far below it,
/// and what a tunnel through names can carry away stays small.
const DNS_PACKETS_PER_SECOND: u32 = 200;
const DNS_BURST: u32 = 1000;

/// In which family the rules see packets that are denied for this reason;
/// `None` for what the kernel drops before any rule.
pub(super) fn family_of(denial: Denial) -> Option<Family> {
    match denial {
        Denial::Neighbour => Some(Family::Arp),
        Denial::Ipv6 => None,
        _ => Some(Family::Inet),
    }
}

/// The families in which we have a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Inet,
    Arp,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::Inet, Self::Arp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Arp => "arp",
        }
    }

    /// Its number in netlink messages.
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Arp => 3,
        }
    }
}

/// Name of the set that counts what was denied for this reason.
pub(super) fn denied_set(denial: Denial) -> String {
    format!("denied_{}", denial.name())
}

/// A set of interfaces and the chain that counts and drops, for one reason.
fn denial_objects(denial: Denial) -> String {
    let (set, name) = (denied_set(denial), denial.name());
    let side = match denial {
        Denial::NotAskedFor => "oifname",
        _ => "iifname",
    };
    format!(
        "    set {set} {{ type ifname; counter; }}
    chain deny_{name} {{
        {side} @{set} drop
        drop
    }}
"
    )
}

fn objects_of(family: Family) -> String {
    Denial::ALL
        .iter()
        .filter(|denial| family_of(**denial) == Some(family))
        .map(|denial| denial_objects(*denial))
        .collect()
}

/// The text that `nft` loads.
///
/// Every drop is counted for the sandbox and the reason, so `nft list table
/// inet atoll` says why something does not get through. The order matters:
/// what is dropped first is named by the most telling reason.
pub(super) fn ruleset(range: &SlotRange) -> String {
    let closed = CLOSED_IPV4.join(", ");
    let sandbox = format!("\"{INTERFACE_PREFIX}*\"");
    let (inet, arp) = (objects_of(Family::Inet), objects_of(Family::Arp));
    format!(
        r#"table inet {TABLE} {{
    comment "network of Atoll sandboxes; gone when the last one is"

    set closed {{
        type ipv4_addr
        flags interval
        elements = {{ {closed} }}
    }}

    map {SENT} {{ type ifname : ipv4_addr; counter; }}
    set {RECEIVED} {{ type ifname; counter; }}
    set {DNS} {{ type ifname; limit rate {DNS_PACKETS_PER_SECOND}/second burst {DNS_BURST} packets; counter; }}
    set {ALLOWED} {{ type ifname . ipv4_addr; flags interval; }}
    set {REFUSED} {{ type ifname . ipv4_addr; flags interval; }}

{inet}
    # Before connection tracking: a sandbox speaks with its own address only,
    # which becomes that of its slot.
    chain arrival {{
        type filter hook prerouting priority raw; policy accept;
        iifname {sandbox} jump translate
    }}

    chain translate {{
        ip saddr {GUEST} ip saddr set iifname map @{SENT} return
        goto deny_{forged}
    }}

    # Before any redirection of the host's own: what was asked for is judged.
    chain judgement {{
        type filter hook prerouting priority mangle; policy accept;
        iifname {sandbox} goto judge
    }}

    # Most packets belong to a connection that was judged, and go no further than its second rule.
    chain judge {{
        ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 goto names
        ct state established,related accept
        ip daddr {range} goto deny_{other}
        fib daddr type != unicast goto unusual
        ip daddr @closed goto deny_{closed_range}
        meta l4proto != {{ tcp, udp, icmp }} goto deny_{protocol}
        icmp type != echo-request goto deny_{protocol}
        ct state invalid goto deny_{protocol}
        iifname . ip daddr @{ALLOWED} accept
        iifname . ip daddr @{REFUSED} goto deny_{policy}
    }}

    chain unusual {{
        fib daddr type local goto deny_{host}
        goto deny_{closed_range}
    }}

    # Every query, not only the first of a conversation.
    chain names {{
        iifname @{DNS} accept
        goto deny_{dns}
    }}

    chain forward {{
        type filter hook forward priority filter; policy accept;
        ct state established,related accept
        iifname {sandbox} jump leaving
        oifname {sandbox} goto deny_{unasked}
    }}

    # Where a rule of the host's has sent it elsewhere, it is judged again.
    chain leaving {{
        oifname {sandbox} goto deny_{other}
        ip daddr @closed goto deny_{closed_range}
    }}

    # Of the host itself a sandbox reaches its DNS forwarder and nothing else.
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname {sandbox} jump enter_host
    }}

    # A stack of its own cannot be entered, so the host dials its address: answers come back.
    chain enter_host {{
        ct direction reply ct state established accept
        ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
        goto deny_{host}
    }}

    chain output {{
        type filter hook output priority filter; policy accept;
        ct state established,related accept
        oifname {sandbox} jump dialed
    }}

    chain dialed {{
        meta skuid 0 tcp dport {{ {PASSAGE_PORT}, {GUEST_PORT} }} accept
        goto deny_{unasked}
    }}

    chain departure {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {range} oifname != "lo" oifname != {sandbox} masquerade
    }}

    chain delivery {{
        type filter hook postrouting priority srcnat + 100; policy accept;
        oifname {sandbox} jump deliver
    }}

    chain deliver {{
        icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} jump {INNER_SOURCE}
        oifname @{RECEIVED} ip daddr set {GUEST} accept
        drop
    }}

    chain {INNER_SOURCE} {{
    }}
}}

table arp {TABLE} {{
{arp}
    # Both ends know each other's hardware address: nothing is asked, and
    # nothing is learned.
    chain arrival {{
        type filter hook input priority filter; policy accept;
        iifname {sandbox} goto deny_{neighbour}
    }}
}}
"#,
        forged = Denial::ForgedSource.name(),
        neighbour = Denial::Neighbour.name(),
        host = Denial::Host.name(),
        other = Denial::OtherSandbox.name(),
        closed_range = Denial::ClosedRange.name(),
        policy = Denial::Policy.name(),
        protocol = Denial::Protocol.name(),
        dns = Denial::Dns.name(),
        unasked = Denial::NotAskedFor.name(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_closed_range_of_the_protocol_is_in_the_text() {
        let text = ruleset(&SlotRange::default());
        for closed in CLOSED_IPV4 {
            assert!(text.contains(closed), "{closed}");
        }
    }

    #[test]
    fn the_slot_range_is_the_only_thing_that_varies() {
        let one = ruleset(&SlotRange::default());
        let other = ruleset(&"198.18.0.0/16".parse().unwrap());
        assert!(!other.contains("10.87."));
        assert_eq!(one.replace("10.87.0.0/16", "198.18.0.0/16"), other);
    }

    #[test]
    fn every_reason_that_rules_see_is_used_and_counted() {
        let text = ruleset(&SlotRange::default());
        for denial in Denial::ALL {
            let (goto, set) = (
                format!("goto deny_{}\n", denial.name()),
                denied_set(*denial),
            );
            let seen = family_of(*denial).is_some();
            assert_eq!(text.contains(&goto), seen, "{goto}");
            assert_eq!(text.contains(&format!("@{set} drop")), seen, "{set}");
        }
    }
}
