//! Which addresses and which interface name belong to a slot.
//!
//! Inside, every sandbox has the same address and the same gateway, so that a
//! checkpoint can be restored in any slot. They are link-local: nothing that a
//! sandbox may reach lies there, the whole range is closed to it, and E2B's
//! sandboxes have the very same. On the host each slot has one address of its
//! own, which the rules put in the place of the sandbox's.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::NetworkError;

/// What the name of every host-side interface begins with.
pub(super) const INTERFACE_PREFIX: &str = "atl";

/// Address of every sandbox, inside.
pub(super) const GUEST: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 21);
/// The host's end of every sandbox's interface: its default route and resolver.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 22);
/// Length of their common prefix.
pub(super) const INSIDE_PREFIX: u8 = 30;
/// Hardware addresses of both ends, locally administered.
pub(super) const GUEST_HARDWARE: [u8; 6] = [0x02, b'a', b't', b'l', 0, 1];
pub(super) const GATEWAY_HARDWARE: [u8; 6] = [0x02, b'a', b't', b'l', 0, 2];

/// The first and the last address of a range are left alone.
const UNUSED_ADDRESSES: u32 = 2;
/// A longer prefix has no address left.
const LONGEST_PREFIX: u8 = 30;
/// Nothing larger is worth giving to sandboxes.
const SHORTEST_PREFIX: u8 = 8;

/// The addresses that the sandboxes of this host share, written `10.87.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SlotRange {
    base: Ipv4Addr,
    prefix: u8,
}

/// Why a text is no usable slot range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a usable slot range: {reason}")]
pub struct InvalidSlotRange {
    text: String,
    reason: &'static str,
}

impl SlotRange {
    /// The range `base`/`prefix`.
    ///
    /// # Errors
    /// When it is not a whole network, or holds addresses no sandbox can have.
    pub fn new(base: Ipv4Addr, prefix: u8) -> Result<Self, InvalidSlotRange> {
        let refuse = |reason| {
            Err(InvalidSlotRange {
                text: format!("{base}/{prefix}"),
                reason,
            })
        };
        if !(SHORTEST_PREFIX..=LONGEST_PREFIX).contains(&prefix) {
            return refuse("its prefix must lie between /8 and /30");
        }
        if u32::from(base) & !mask(prefix) != 0 {
            return refuse("its address has bits below the prefix");
        }
        if base.octets()[0] == 0 || base.is_loopback() || base.octets()[0] >= 224 {
            return refuse("these addresses have a meaning of their own");
        }
        Ok(Self { base, prefix })
    }

    /// How many slots have addresses in it.
    #[must_use]
    pub fn slots(&self) -> u32 {
        (1 << (32 - self.prefix)) - UNUSED_ADDRESSES
    }

    /// Whether it shares addresses with `base`/`prefix`.
    pub(super) fn overlaps(&self, base: Ipv4Addr, prefix: u8) -> bool {
        let common = mask(self.prefix.min(prefix));
        u32::from(self.base) & common == u32::from(base) & common
    }

    /// The address of `slot` on this host.
    pub(super) fn address(&self, slot: u16) -> Result<Ipv4Addr, NetworkError> {
        if u32::from(slot) >= self.slots() {
            return Err(NetworkError::SlotOutOfRange {
                slot,
                range: *self,
                slots: self.slots(),
            });
        }
        Ok(Ipv4Addr::from(u32::from(self.base) + 1 + u32::from(slot)))
    }
}

impl Default for SlotRange {
    fn default() -> Self {
        Self {
            base: Ipv4Addr::new(10, 87, 0, 0),
            prefix: 16,
        }
    }
}

impl fmt::Display for SlotRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.base, self.prefix)
    }
}

impl FromStr for SlotRange {
    type Err = InvalidSlotRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text
            .split_once('/')
            .and_then(|(base, prefix)| Some((base.parse().ok()?, prefix.parse().ok()?)));
        let (base, prefix) = parsed.ok_or_else(|| InvalidSlotRange {
            text: text.to_owned(),
            reason: "write it as an IPv4 network, such as 10.87.0.0/16",
        })?;
        Self::new(base, prefix)
    }
}

impl TryFrom<String> for SlotRange {
    type Error = InvalidSlotRange;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SlotRange> for String {
    fn from(range: SlotRange) -> Self {
        range.to_string()
    }
}

/// Name of the host-side interface of `slot`.
pub(super) fn interface_name(slot: u16) -> String {
    format!("{INTERFACE_PREFIX}{slot}")
}

/// The slot that the host-side interface `name` belongs to; `None` for a foreign one.
pub(super) fn slot_of_interface(name: &str) -> Option<u16> {
    let slot = name.strip_prefix(INTERFACE_PREFIX)?.parse().ok()?;
    // `atl007` and `atl+7` parse as well, but we never give such names.
    (interface_name(slot) == name).then_some(slot)
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_is_the_address_at_its_number() {
        let range = SlotRange::default();
        let of = |slot| range.address(slot).unwrap().to_string();
        assert_eq!(of(0), "10.87.0.1");
        assert_eq!(of(1), "10.87.0.2");
        assert_eq!(of(4095), "10.87.16.0");
    }

    #[test]
    fn a_small_range_refuses_the_slots_it_does_not_hold() {
        let range: SlotRange = "198.18.0.0/29".parse().unwrap();
        assert_eq!(range.slots(), 6);
        assert!(range.address(5).is_ok());
        assert!(matches!(
            range.address(6),
            Err(NetworkError::SlotOutOfRange {
                slot: 6,
                slots: 6,
                ..
            })
        ));
    }

    #[test]
    fn what_sandboxes_see_is_one_small_network_of_the_closed_ones() {
        let (guest, gateway) = (u32::from(GUEST), u32::from(GATEWAY));
        assert_eq!(guest & mask(INSIDE_PREFIX), gateway & mask(INSIDE_PREFIX));
        assert!(GUEST.is_link_local() && GATEWAY.is_link_local());
    }

    #[test]
    fn ranges_that_no_sandbox_can_use_are_refused_with_the_reason() {
        for (text, reason) in [
            ("10.87.0.0", "write it as"),
            ("10.87.0.0/31", "between /8 and /30"),
            ("10.87.0.0/7", "between /8 and /30"),
            ("10.87.0.1/16", "bits below the prefix"),
            ("127.0.0.0/8", "a meaning of their own"),
            ("0.0.0.0/8", "a meaning of their own"),
            ("224.0.0.0/8", "a meaning of their own"),
            ("::1/16", "write it as"),
        ] {
            let error = text.parse::<SlotRange>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn overlap_is_seen_from_both_sides() {
        let range = SlotRange::default();
        assert!(range.overlaps(Ipv4Addr::new(10, 0, 0, 0), 8));
        assert!(range.overlaps(Ipv4Addr::new(10, 87, 4, 0), 24));
        assert!(!range.overlaps(Ipv4Addr::new(10, 88, 0, 0), 16));
    }

    #[test]
    fn only_names_that_we_give_are_ours() {
        assert_eq!(slot_of_interface("atl0"), Some(0));
        assert_eq!(slot_of_interface("atl4095"), Some(4095));
        for foreign in [
            "atl", "atl07", "atl+7", "atlas0", "eth0", "atl99999", "xatl1",
        ] {
            assert_eq!(slot_of_interface(foreign), None, "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn slots_of_one_range_never_share_an_address(prefix in 8_u8..=30, one: u16, other: u16) {
            let range = SlotRange::new(Ipv4Addr::new(10, 0, 0, 0), prefix).unwrap();
            if let (Ok(first), Ok(second)) = (range.address(one), range.address(other)) {
                prop_assert!(range.overlaps(first, 32));
                prop_assert_eq!(one == other, first == second);
            }
        }

        #[test]
        fn every_range_reads_back_as_written(base: u32, prefix in 8_u8..=30) {
            if let Ok(range) = SlotRange::new(Ipv4Addr::from(base & mask(prefix)), prefix) {
                prop_assert_eq!(range.to_string().parse::<SlotRange>().unwrap(), range);
            }
        }

        #[test]
        fn interface_names_fit_the_kernel_and_lead_back(slot: u16) {
            let name = interface_name(slot);
            prop_assert!(name.len() <= 15);
            prop_assert_eq!(slot_of_interface(&name), Some(slot));
        }
    }
}
