//! A range of addresses, as `--net-allow` and `--net-deny` take it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 or IPv6 network, or a single address; written `192.0.2.0/24` or `192.0.2.1`.
///
/// Bits below the prefix are cleared, and an IPv4 address in the clothes of an
/// IPv6 one (`::ffff:192.0.2.1`) is the IPv4 address it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    base: IpAddr,
    prefix: u8,
}

/// Why a text is no [`Cidr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a CIDR: {reason}")]
pub struct InvalidCidr {
    text: String,
    reason: &'static str,
}

/// `::ffff:0:0/96`, where IPv4 addresses lie within IPv6.
const MAPPED_PREFIX: u8 = 96;

impl Cidr {
    /// All of IPv4.
    pub const ALL_IPV4: Self = Self {
        base: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix: 0,
    };

    /// The range of `prefix` bits around `address`; `None` when the address has fewer bits.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        match address {
            IpAddr::V4(address) if prefix <= 32 => Some(Self {
                base: Ipv4Addr::from(u32::from(address) & mask(prefix)).into(),
                prefix,
            }),
            IpAddr::V6(address) if prefix <= 128 => match address.to_ipv4_mapped() {
                Some(mapped) if prefix >= MAPPED_PREFIX => {
                    Self::new(mapped.into(), prefix - MAPPED_PREFIX)
                }
                _ => Some(Self {
                    base: Ipv6Addr::from(u128::from(address) & wide_mask(prefix)).into(),
                    prefix,
                }),
            },
            _ => None,
        }
    }

    /// Whether every address of `other` lies in it.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        self.prefix <= other.prefix
            && Self::new(other.base, self.prefix).is_some_and(|wider| wider == *self)
    }

    /// First and last address, if it is a range of IPv4.
    pub(super) fn ipv4_bounds(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        match self.base {
            IpAddr::V4(base) => {
                let last = u32::from(base) | !mask(self.prefix);
                Some((base, Ipv4Addr::from(last)))
            }
            IpAddr::V6(_) => None,
        }
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn wide_mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl From<Ipv4Addr> for Cidr {
    fn from(address: Ipv4Addr) -> Self {
        Self {
            base: address.into(),
            prefix: 32,
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.base, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |reason| InvalidCidr {
            text: text.to_owned(),
            reason,
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            let is_name = address.contains(|letter: char| letter.is_ascii_alphabetic())
                && !address.contains(':');
            refuse(if is_name || address == "*" {
                "domains are not supported yet, only addresses and CIDRs such as 192.0.2.0/24"
            } else {
                "write an address or a network, such as 192.0.2.1 or 192.0.2.0/24"
            })
        })?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => widest,
            // `u8` would take `+24` as well.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .map_err(|_| refuse("its prefix is not a number of bits"))?,
            Some(_) => return Err(refuse("its prefix is not a number of bits")),
        };
        Self::new(address, prefix)
            .ok_or_else(|| refuse("its prefix is longer than the address has bits"))
    }
}

impl TryFrom<String> for Cidr {
    type Error = InvalidCidr;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(range: Cidr) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> String {
        text.parse::<Cidr>().unwrap().to_string()
    }

    #[test]
    fn addresses_and_networks_are_read_and_normalised() {
        assert_eq!(written("192.0.2.1"), "192.0.2.1/32");
        assert_eq!(written("192.0.2.77/24"), "192.0.2.0/24");
        assert_eq!(written("0.0.0.0/0"), "0.0.0.0/0");
        assert_eq!(written("2001:db8::1/32"), "2001:db8::/32");
        assert_eq!(written("::ffff:10.0.0.1"), "10.0.0.1/32");
        assert_eq!(written("::ffff:10.1.2.3/104"), "10.0.0.0/8");
        assert_eq!(written("::/0"), "::/0");
    }

    #[test]
    fn odd_notations_and_domains_are_refused_with_the_reason() {
        for (text, reason) in [
            ("example.org", "domains are not supported yet"),
            ("*.example.org", "domains are not supported yet"),
            ("*", "domains are not supported yet"),
            ("0x7f.1", "domains are not supported yet"),
            ("127.1", "write an address"),
            ("017.0.0.1", "write an address"),
            ("2130706433", "write an address"),
            ("10.0.0.0/33", "longer than"),
            ("10.0.0.0/+8", "not a number"),
            ("10.0.0.0/", "not a number"),
            ("2001:db8::/129", "longer than"),
            ("", "write an address"),
        ] {
            let error = text.parse::<Cidr>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn every_range_reads_back_as_written(number: u128, prefix in 0_u8..=128, narrow: bool) {
            let address: IpAddr = if narrow {
                Ipv4Addr::from(u32::try_from(number >> 96).unwrap()).into()
            } else {
                Ipv6Addr::from(number).into()
            };
            if let Some(range) = Cidr::new(address, prefix) {
                prop_assert_eq!(range.to_string().parse::<Cidr>().unwrap(), range);
                prop_assert!(range.contains(&range));
                let bits = if narrow { 32 } else { 128 };
                prop_assert!(range.contains(&Cidr::new(address, bits).unwrap()));
            }
        }
    }
}
