//! How this host reaches the internet, and what may stand in the way of its sandboxes.

use std::fs;
use std::net::Ipv4Addr;

use serde::Deserialize;

use super::error::{NetworkError, kernel};
use super::netlink::Netlink;
use super::slot::{SlotRange, slot_of_interface};
use super::{forwarding, nft};

/// MTU of sandboxes on a host that has no default route.
const MTU_WITHOUT_UPLINK: u32 = 1500;

const ROUTE_UP: u32 = 0x1;
const ROUTE_REJECT: u32 = 0x200;

/// A line of the kernel's IPv4 routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Route {
    interface: String,
    destination: Ipv4Addr,
    prefix: u8,
    gateway: Ipv4Addr,
    metric: u32,
}

/// The way from this host to everywhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DefaultRoute {
    /// The interface it leaves by.
    pub(crate) interface: String,
    /// The next router; `None` when the interface is a point-to-point link.
    pub(crate) gateway: Option<Ipv4Addr>,
}

/// A chain of somebody else's firewall that drops what no rule of its own lets through.
///
/// An accept in our table does not override it: every table has its say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockingChain {
    /// Such as `ip`.
    pub(crate) family: String,
    /// Such as `filter`.
    pub(crate) table: String,
    /// Such as `FORWARD`.
    pub(crate) chain: String,
}

/// What `doctor` says about the way out of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UplinkReport {
    /// Without one, sandboxes reach nothing.
    pub(crate) default_route: Option<DefaultRoute>,
    /// Whether this host forwards packets now; Atoll switches it on while it needs it.
    pub(crate) forwarding: bool,
    /// Chains that may drop what sandboxes send; `None` when `nft` cannot be asked.
    pub(crate) blocking_chains: Option<Vec<BlockingChain>>,
    /// Rules of the old iptables exist, which `nft` does not show.
    pub(crate) legacy_iptables: bool,
    /// Routes of this host that share addresses with the slot range, as
    /// `network/prefix dev interface`: sandboxes hide some of what lies behind them.
    pub(crate) hidden_routes: Vec<String>,
}

/// Looks at this host without changing or sending anything.
///
/// # Errors
/// When the kernel's routing table or settings cannot be read.
pub(crate) fn uplink_probe(range: &SlotRange) -> Result<UplinkReport, NetworkError> {
    let routes = routes()?;
    let chains = nft::run("list chains", &["--json", "list", "chains"], "");
    Ok(UplinkReport {
        default_route: default_route(&routes),
        forwarding: forwarding::is_on()?,
        blocking_chains: chains.ok().and_then(|listing| blocking_chains(&listing)),
        legacy_iptables: fs::read_to_string("/proc/thread-self/net/ip_tables_names")
            .is_ok_and(|names| !names.trim().is_empty()),
        hidden_routes: overlapping(&routes, range),
    })
}

/// See [`UplinkReport::hidden_routes`].
pub(super) fn hidden_routes(range: &SlotRange) -> Result<Vec<String>, NetworkError> {
    Ok(overlapping(&routes()?, range))
}

/// MTU of the interface that the default route leaves by, so that nothing a
/// sandbox sends has to be cut in pieces on the way.
pub(super) fn mtu(host: &mut Netlink) -> Result<u32, NetworkError> {
    let Some(uplink) = default_route(&routes()?) else {
        return Ok(MTU_WITHOUT_UPLINK);
    };
    let found = host
        .interface(&uplink.interface)
        .map_err(kernel(format!("look at `{}`", uplink.interface)))?;
    Ok(found
        .and_then(|interface| interface.mtu)
        .unwrap_or(MTU_WITHOUT_UPLINK))
}

fn routes() -> Result<Vec<Route>, NetworkError> {
    let table = fs::read_to_string("/proc/thread-self/net/route")
        .map_err(kernel("read the routes of this host"))?;
    Ok(table.lines().filter_map(parse_route).collect())
}

/// One line of `/proc/net/route`; `None` for its heading and for dead routes.
fn parse_route(line: &str) -> Option<Route> {
    let mut fields = line.split_ascii_whitespace();
    let interface = fields.next()?.to_owned();
    let destination = hex_address(fields.next()?)?;
    let gateway = hex_address(fields.next()?)?;
    let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
    let metric = fields.nth(2)?.parse().ok()?;
    let mask = hex_address(fields.next()?)?;
    let usable = flags & ROUTE_UP != 0 && flags & ROUTE_REJECT == 0;
    let prefix = u8::try_from(u32::from(mask).leading_ones()).ok()?;
    usable.then_some(Route {
        interface,
        destination,
        prefix,
        gateway,
        metric,
    })
}

/// The kernel prints addresses as the number that their bytes are in memory.
fn hex_address(text: &str) -> Option<Ipv4Addr> {
    u32::from_str_radix(text, 16)
        .ok()
        .map(|number| Ipv4Addr::from(number.to_ne_bytes()))
}

fn default_route(routes: &[Route]) -> Option<DefaultRoute> {
    let best = routes
        .iter()
        .filter(|route| route.prefix == 0)
        .min_by_key(|route| route.metric)?;
    let gateway = (!best.gateway.is_unspecified()).then_some(best.gateway);
    Some(DefaultRoute {
        interface: best.interface.clone(),
        gateway,
    })
}

fn overlapping(routes: &[Route], range: &SlotRange) -> Vec<String> {
    let foreign = routes
        .iter()
        .filter(|route| route.prefix != 0 && slot_of_interface(&route.interface).is_none());
    foreign
        .filter(|route| range.overlaps(route.destination, route.prefix))
        .map(|route| {
            format!(
                "{}/{} dev {}",
                route.destination, route.prefix, route.interface
            )
        })
        .collect()
}

/// Chains of `nft --json list chains` that drop forwarded packets by default.
fn blocking_chains(listing: &str) -> Option<Vec<BlockingChain>> {
    #[derive(Deserialize)]
    struct Listing {
        nftables: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        chain: Option<Chain>,
    }
    #[derive(Deserialize)]
    struct Chain {
        family: String,
        table: String,
        name: String,
        hook: Option<String>,
        policy: Option<String>,
    }

    let listing: Listing = serde_json::from_str(listing).ok()?;
    let chains = listing.nftables.into_iter().filter_map(|item| item.chain);
    let blocking = chains.filter(|chain| {
        // Others never see what sandboxes send.
        ["ip", "inet"].contains(&chain.family.as_str())
            && chain.hook.as_deref() == Some("forward")
            && chain.policy.as_deref() == Some("drop")
            && !nft::is_our_table(&chain.family, &chain.table)
    });
    Some(
        blocking
            .map(|chain| BlockingChain {
                family: chain.family,
                table: chain.table,
                chain: chain.name,
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
down0\t00000000\t010200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
*\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0
corp0\t0000570A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
atl3\t0C00570A\t00000000\t0001\t0\t0\t0\tFCFFFFFF\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

    #[test]
    fn the_usable_default_route_with_the_lowest_metric_wins() {
        let routes: Vec<Route> = TABLE.lines().filter_map(parse_route).collect();
        let expected = DefaultRoute {
            interface: "eth0".to_owned(),
            gateway: Some(Ipv4Addr::new(192, 0, 2, 1)),
        };
        assert_eq!(default_route(&routes), Some(expected));
        assert_eq!(default_route(&[]), None);
    }

    #[test]
    fn routes_that_the_slot_range_would_hide_are_named_but_not_our_own() {
        let routes: Vec<Route> = TABLE.lines().filter_map(parse_route).collect();
        assert_eq!(
            overlapping(&routes, &SlotRange::default()),
            ["10.87.0.0/16 dev corp0"]
        );
        assert_eq!(
            overlapping(&routes, &"10.99.0.0/16".parse().unwrap()),
            [""; 0]
        );
    }

    #[test]
    fn only_foreign_chains_that_drop_forwarded_packets_block() {
        let listing = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 1, "type": "filter",
                "hook": "forward", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "handle": 2, "type": "filter",
                "hook": "input", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "ip6", "table": "filter", "name": "FORWARD", "handle": 3, "type": "filter",
                "hook": "forward", "prio": 0, "policy": "accept"}},
            {"chain": {"family": "inet", "table": "atoll", "name": "x", "handle": 3, "type": "filter",
                "hook": "forward", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER", "handle": 4}}]}"#;
        let docker = BlockingChain {
            family: "ip".into(),
            table: "filter".into(),
            chain: "FORWARD".into(),
        };
        assert_eq!(blocking_chains(listing), Some(vec![docker]));
        assert_eq!(blocking_chains("not json"), None);
    }
}
