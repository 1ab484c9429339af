//! What a sandbox may reach and who may reach it, as it is asked for, stored
//! and told; and the policy that this means to the engine.

use atoll_engine::{Cidr, InvalidPolicy, NetworkPolicy};
use serde::{Deserialize, Serialize};

use crate::running::Ingress;

/// Port of the guest, which speaks for itself.
const GUEST_PORT: u16 = 49983;
/// Ports that may speak TLS inside, at most.
const HTTPS_PORTS_MAX: usize = 64;
/// Longest `Host`.
const HOST_LEN_MAX: usize = 253;

/// Both directions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Out of the sandbox.
    pub egress: Egress,
    /// Into its ports.
    pub ingress: IngressWish,
}

/// What a sandbox may reach. What is absent was not said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// `false`: nothing but what is allowed by name.
    pub internet: Option<bool>,
    /// Open although it is denied.
    pub allow: Option<Vec<String>>,
    /// Closed.
    pub deny: Option<Vec<String>>,
}

/// Who may come to the ports of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortAccess {
    /// Everybody who knows where it is.
    #[default]
    Everybody,
    /// Who has its traffic token.
    TokenHolders,
}

/// How the ports of a sandbox are reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IngressWish {
    /// Who may come.
    pub access: PortAccess,
    /// The `Host` that services see.
    pub mask_host: Option<String>,
    /// Ports that speak TLS inside.
    pub https_ports: Vec<u16>,
}

/// Why traffic cannot be as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTraffic {
    /// No network or address.
    #[error("invalid denied CIDR {0}")]
    Denied(String),
    /// Neither network nor address.
    #[error(
        "'{0}' cannot be allowed: this version of Atoll opens addresses and CIDRs, and no names of domains"
    )]
    Allowed(String),
    /// The operator denies it.
    #[error("'{0}' cannot be allowed: the operator of this server denies it")]
    Operator(String),
    /// A policy without effect, or too long.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
    /// A `Host` that no request could carry.
    #[error("maskRequestHost must be 1 to {HOST_LEN_MAX} printable ASCII characters")]
    MaskHost,
    /// Ports that cannot speak TLS.
    #[error("httpsPorts takes at most {HTTPS_PORTS_MAX} ports, and neither 0 nor {GUEST_PORT}")]
    HttpsPorts,
    /// A network for one that was made without.
    #[error("the sandbox was made without a network and cannot get one")]
    NoNetwork,
}

impl Egress {
    /// What this means to the engine, within what the operator set: `operator`
    /// itself when nothing is said, or only that the internet is wanted, which
    /// many clients always say. What the operator denies stays denied.
    ///
    /// # Errors
    /// When a list names something that it cannot, or the operator denies.
    pub fn policy(&self, operator: &NetworkPolicy) -> Result<NetworkPolicy, InvalidTraffic> {
        let says_nothing = self.internet != Some(false)
            && self.allow.as_ref().is_none_or(Vec::is_empty)
            && self.deny.as_ref().is_none_or(Vec::is_empty);
        let NetworkPolicy::Full { deny: closed, .. } = operator else {
            return Ok(NetworkPolicy::None);
        };
        if says_nothing {
            return Ok(operator.clone());
        }
        let parse = |list: &Option<Vec<String>>, wrong: fn(String) -> InvalidTraffic| {
            let texts = list.iter().flatten();
            texts
                .map(|text| {
                    let shown = || text.chars().take(200).collect();
                    text.trim().parse::<Cidr>().map_err(|_| wrong(shown()))
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let allow = parse(&self.allow, InvalidTraffic::Allowed)?;
        let denied = parse(&self.deny, InvalidTraffic::Denied)?;
        if let Some(open) = allow.iter().find(|open| {
            let overlaps = |closed: &Cidr| closed.contains(open) || open.contains(closed);
            closed.iter().any(overlaps)
        }) {
            return Err(InvalidTraffic::Operator(open.to_string()));
        }
        let mut deny = match self.internet {
            Some(false) => vec![Cidr::ALL_IPV4],
            Some(true) | None => denied,
        };
        deny.extend(closed.iter().filter(|_| self.internet != Some(false)));
        let policy = NetworkPolicy::Full { allow, deny };
        policy.validate()?;
        Ok(policy)
    }
}

impl IngressWish {
    /// Refuses what no request could be answered with.
    pub(super) fn check(&self) -> Result<(), InvalidTraffic> {
        if let Some(host) = &self.mask_host {
            let is_valid = (1..=HOST_LEN_MAX).contains(&host.len())
                && host.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_valid {
                return Err(InvalidTraffic::MaskHost);
            }
        }
        let are_ports = self.https_ports.len() <= HTTPS_PORTS_MAX
            && !self
                .https_ports
                .iter()
                .any(|port| [0, GUEST_PORT].contains(port));
        if are_ports {
            Ok(())
        } else {
            Err(InvalidTraffic::HttpsPorts)
        }
    }

    /// What the data plane has to know.
    pub(super) fn ingress(&self, traffic_token: Option<String>) -> Ingress {
        Ingress {
            traffic_token,
            mask_host: self.mask_host.clone(),
            https_ports: self.https_ports.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|text| (*text).to_owned()).collect())
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let egress = Egress::default();
        for default in [NetworkPolicy::None, NetworkPolicy::full()] {
            assert_eq!(egress.policy(&default), Ok(default.clone()));
        }
        // Many clients always say this, so it says nothing.
        let open = Egress {
            internet: Some(true),
            ..Egress::default()
        };
        for default in [NetworkPolicy::None, NetworkPolicy::full(), denying()] {
            assert_eq!(open.policy(&default), Ok(default.clone()));
        }
    }

    fn denying() -> NetworkPolicy {
        NetworkPolicy::Full {
            allow: vec![],
            deny: vec!["198.51.100.0/24".parse().unwrap()],
        }
    }

    #[test]
    fn what_the_operator_denies_stays_denied() {
        let more = Egress {
            deny: texts(&["203.0.113.7"]),
            ..Egress::default()
        };
        let expected = NetworkPolicy::Full {
            allow: vec![],
            deny: vec![
                "203.0.113.7".parse().unwrap(),
                "198.51.100.0/24".parse().unwrap(),
            ],
        };
        assert_eq!(more.policy(&denying()), Ok(expected));
        for hole in ["198.51.100.7", "198.51.0.0/16"] {
            let punched = Egress {
                allow: texts(&[hole]),
                deny: texts(&["0.0.0.0/0"]),
                ..Egress::default()
            };
            let refused = punched.policy(&denying()).unwrap_err();
            assert!(matches!(refused, InvalidTraffic::Operator(_)), "{hole}");
            assert!(punched.policy(&NetworkPolicy::full()).is_ok(), "{hole}");
        }
        assert_eq!(more.policy(&NetworkPolicy::None), Ok(NetworkPolicy::None));
    }

    #[test]
    fn no_internet_takes_the_place_of_what_is_denied_and_keeps_what_is_allowed() {
        let egress = Egress {
            internet: Some(false),
            allow: texts(&["192.0.2.1"]),
            deny: texts(&["198.51.100.0/24"]),
        };
        let expected = NetworkPolicy::Full {
            allow: vec!["192.0.2.1".parse().unwrap()],
            deny: vec![Cidr::ALL_IPV4],
        };
        assert_eq!(egress.policy(&NetworkPolicy::full()), Ok(expected));
    }

    #[test]
    fn lists_name_addresses_that_can_be_opened_and_closed() {
        let denied = Egress {
            deny: texts(&["example.com"]),
            ..Egress::default()
        };
        let error = denied.policy(&NetworkPolicy::full()).unwrap_err();
        assert_eq!(error.to_string(), "invalid denied CIDR example.com");
        for name in ["example.com", "*.example.com", "*", "10.0.0.1", ""] {
            let allowed = Egress {
                allow: texts(&[name]),
                deny: texts(&["0.0.0.0/0"]),
                ..Egress::default()
            };
            assert!(allowed.policy(&NetworkPolicy::full()).is_err(), "{name}");
        }
    }

    #[test]
    fn hosts_and_ports_are_those_that_can_be() {
        let with = |mask_host: Option<&str>, https_ports: &[u16]| {
            IngressWish {
                access: PortAccess::Everybody,
                mask_host: mask_host.map(str::to_owned),
                https_ports: https_ports.to_vec(),
            }
            .check()
        };
        assert_eq!(with(Some("localhost:${PORT}"), &[8443]), Ok(()));
        for host in ["", "a b", "ä", "a\r\nb", &"a".repeat(254)] {
            assert_eq!(
                with(Some(host), &[]),
                Err(InvalidTraffic::MaskHost),
                "{host:?}"
            );
        }
        for ports in [&[0][..], &[GUEST_PORT], &[1; 65]] {
            assert_eq!(
                with(None, ports),
                Err(InvalidTraffic::HttpsPorts),
                "{ports:?}"
            );
        }
    }
}
