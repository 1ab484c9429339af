//! The packet that tries the way out.

use super::super::{Egress, NetworkError, egress_probe, nft, setting, uplink_probe};
use super::*;

#[test]
fn a_packet_that_leaves_and_one_that_docker_drops_are_told_apart() {
    on_own_host(|host| {
        host.ensure();
        let range = SlotRange::default();
        assert_eq!(egress_probe(SLOT, &range).unwrap(), Egress::Left);
        let docker = "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }";
        nft::run("load a foreign table", &["--file", "-"], docker).unwrap();
        assert_eq!(egress_probe(NEIGHBOUR, &range).unwrap(), Egress::Dropped);
    });
}

#[test]
fn the_packet_dies_at_the_next_router() {
    on_own_host(|host| {
        host.ensure();
        // A router that would pass it on, and sees that its time is over.
        let expired = inside(&host.internet.descriptor, || {
            setting::write("net/ipv4/ip_forward", "1").unwrap();
            let before = time_exceeded();
            move || time_exceeded() - before
        });
        egress_probe(SLOT, &SlotRange::default()).unwrap();
        wait_for(
            || inside(&host.internet.descriptor, expired) == 1,
            || "the router did not see the packet expire".to_owned(),
        );
    });
}

/// How many packets this namespace has declared expired.
fn time_exceeded() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Icmp:"));
    let names = lines.next().unwrap().split_whitespace();
    let values = lines.next().unwrap().split_whitespace();
    let found = names.zip(values).find(|(name, _)| *name == "OutTimeExcds");
    found.unwrap().1.parse().unwrap()
}

#[test]
fn the_probe_sees_the_uplink_and_what_blocks_it() {
    on_own_host(|_| {
        let report = uplink_probe(&SlotRange::default()).unwrap();
        let route = report.default_route.unwrap();
        assert_eq!(
            (route.interface.as_str(), route.gateway),
            ("up0", Some(ROUTER))
        );
        assert!(!report.forwarding);
        assert_eq!(report.blocking_chains, Some(Vec::new()));
        assert_eq!(report.hidden_routes, [""; 0]);

        let docker = "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }";
        nft::run("load a foreign table", &["--file", "-"], docker).unwrap();
        setting::write("net/ipv4/ip_forward", "1").unwrap();
        let report = uplink_probe(&"203.0.113.0/24".parse().unwrap()).unwrap();
        assert!(report.forwarding);
        let chains: Vec<String> = report
            .blocking_chains
            .unwrap()
            .into_iter()
            .map(|found| found.chain)
            .collect();
        assert_eq!(chains, ["FORWARD"]);
        assert_eq!(report.hidden_routes, ["203.0.113.0/24 dev up0"]);
    });
}

#[test]
fn a_missing_or_refusing_nft_says_what_to_do() {
    assert!(
        NetworkError::NftMissing
            .hint()
            .unwrap()
            .contains("apt-get install nftables")
    );
    on_own_host(|_| {
        let error = nft::run("load nonsense", &["--file", "-"], "nonsense").unwrap_err();
        assert!(error.to_string().contains("syntax error"), "{error}");
    });
}
