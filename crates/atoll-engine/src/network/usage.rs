//! What the kernel counted of a sandbox's network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Packets and their bytes. A packet that the kernel carries in one piece,
/// however large, counts as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// How many.
    pub packets: u64,
    /// How large together, with their IP headers.
    pub bytes: u64,
}

/// What one sandbox sent, got and was denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUsage {
    /// Sent under its own address, also what was denied afterwards.
    pub sent: Traffic,
    /// Delivered to it.
    pub received: Traffic,
    /// Sent to the DNS forwarder; part of `sent`.
    pub dns: Traffic,
    /// What was dropped, by reason; reasons that never happened are absent.
    pub denied: BTreeMap<Denial, Traffic>,
}

macro_rules! denials {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Denial { $($(#[doc = $doc])* $name,)* }

        impl Denial {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in JSON and in the rules.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

denials! {
    /// Not sent under the sandbox's own address; IPv6 that reached the rules too.
    ForgedSource => "forged_source",
    /// Address resolution: both ends know each other already.
    Neighbour => "neighbour",
    /// To an address of the host, but not to the DNS forwarder.
    Host => "host",
    /// To another sandbox, or to an address that one may have.
    OtherSandbox => "other_sandbox",
    /// To a range that is closed to all sandboxes, a broadcast or a multicast address.
    ClosedRange => "closed_range",
    /// To what the sandbox's own policy denies.
    Policy => "policy",
    /// A protocol other than TCP, UDP and ping, or a packet of no connection.
    Protocol => "protocol",
    /// To the DNS forwarder, faster than it may ask, or where it may not ask at all.
    Dns => "dns",
    /// To the sandbox, from somebody it did not speak to first.
    NotAskedFor => "not_asked_for",
    /// IPv6, which sandboxes do not have.
    Ipv6 => "ipv6",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_one_name_everywhere() {
        for denial in Denial::ALL {
            let text = serde_json::to_string(denial).unwrap();
            assert_eq!(text, format!("\"{}\"", denial.name()));
        }
    }
}
