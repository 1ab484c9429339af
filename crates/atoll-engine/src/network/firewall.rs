//! The rules that every sandbox with a network lives under.
//!
//! One table for the whole host, none per sandbox: interfaces are told apart
//! by the prefix of their names, addresses by the slot range.

use super::nft::TABLE;
use super::slot::{INTERFACE_PREFIX, SlotRange};

/// Ranges no sandbox may reach, IPv4: exactly those of E2B.
const CLOSED_IPV4: [&str; 6] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
];
/// The same, IPv6.
const CLOSED_IPV6: [&str; 3] = ["::1", "fc00::/7", "fe80::/10"];

/// The text that `nft` loads.
///
/// Every drop counts, so `nft list table inet atoll` says why something does
/// not get through. The order matters: what is dropped first is named by the
/// most telling rule.
pub(super) fn ruleset(range: &SlotRange) -> String {
    let closed_ipv4 = CLOSED_IPV4.join(", ");
    let closed_ipv6 = CLOSED_IPV6.join(", ");
    let sandbox = format!("\"{INTERFACE_PREFIX}*\"");
    format!(
        r#"table inet {TABLE} {{
    comment "network of Atoll sandboxes; gone when the last one is"

    set closed_ipv4 {{
        type ipv4_addr
        flags interval
        elements = {{ {closed_ipv4} }}
    }}

    set closed_ipv6 {{
        type ipv6_addr
        flags interval
        elements = {{ {closed_ipv6} }}
    }}

    # Before connection tracking: a sandbox speaks only with the address of its own slot.
    chain arrival {{
        type filter hook prerouting priority raw; policy accept;
        iifname {sandbox} fib saddr . iif oif missing counter drop comment "forged source"
    }}

    chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname {sandbox} jump from_sandbox
        oifname {sandbox} jump to_sandbox
    }}

    chain from_sandbox {{
        oifname {sandbox} counter drop comment "another sandbox"
        ip daddr {range} counter drop comment "another slot"
        ip daddr @closed_ipv4 counter drop comment "closed range"
        ip6 daddr @closed_ipv6 counter drop comment "closed range"
        meta nfproto ipv6 counter drop comment "no IPv6 yet"
        ip saddr != {range} counter drop comment "forged source"
        ct state invalid counter drop comment "would leave without NAT"
        accept
    }}

    chain to_sandbox {{
        ct state established,related accept
        counter drop comment "not asked for"
    }}

    # Of the host itself a sandbox reaches its DNS forwarder and nothing else.
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname {sandbox} jump host_from_sandbox
    }}

    # A stack of its own cannot be entered, so the host dials its address: answers may come back.
    chain host_from_sandbox {{
        ct direction reply ct state established accept
        ip daddr {range} ip daddr & 0.0.0.3 == 0.0.0.1 udp dport 53 accept
        ip daddr {range} ip daddr & 0.0.0.3 == 0.0.0.1 tcp dport 53 accept
        counter drop comment "the host"
    }}

    chain departure {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {range} oifname != "lo" oifname != {sandbox} masquerade
    }}
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_closed_range_of_the_protocol_is_in_the_text() {
        let text = ruleset(&SlotRange::default());
        for closed in CLOSED_IPV4.iter().chain(&CLOSED_IPV6) {
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
    fn every_drop_counts_and_says_why() {
        let text = ruleset(&SlotRange::default());
        let drops: Vec<&str> = text.lines().filter(|line| line.contains(" drop")).collect();
        assert_eq!(drops.len(), 10);
        for line in drops {
            assert!(line.contains("counter drop comment \""), "{line}");
        }
    }
}
