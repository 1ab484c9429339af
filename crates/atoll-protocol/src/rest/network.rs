//! What a sandbox may reach, and who may reach it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `network` of a creation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Open although `deny_out` names it: networks, addresses, names.
    pub allow_out: Option<Vec<String>>,
    /// Closed: networks and addresses.
    pub deny_out: Option<Vec<String>>,
    /// Whether everybody may come to its ports.
    pub allow_public_traffic: Option<bool>,
    /// The `Host` that its services see.
    pub mask_request_host: Option<String>,
    /// Ports that speak TLS inside.
    pub https_ports: Option<Vec<u16>>,
    /// Changes of requests on their way out, by domain.
    pub rules: Option<BTreeMap<String, Value>>,
    /// Where all traffic goes through.
    pub egress_proxy: Option<EgressProxy>,
    /// Resolvers.
    pub dns_servers: Option<Vec<String>>,
}

/// A proxy for everything that leaves. Nothing of it is looked at yet.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct EgressProxy {
    /// Host and port.
    #[serde(default)]
    pub address: Option<String>,
}

/// Body of `PUT /sandboxes/{id}/network`: everything that leaves, anew.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressChange {
    /// Open although `deny_out` names it.
    pub allow_out: Option<Vec<String>>,
    /// Closed.
    pub deny_out: Option<Vec<String>>,
    /// `false` closes everything that `allow_out` does not name.
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    /// Changes of requests on their way out.
    pub rules: Option<BTreeMap<String, Value>>,
    /// Where all traffic goes through.
    pub egress_proxy: Option<EgressProxy>,
    /// Resolvers.
    pub dns_servers: Option<Vec<String>>,
}

/// `network` of a sandbox's details.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkDetail {
    /// Open although `deny_out` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// Whether everybody may come to its ports.
    pub allow_public_traffic: bool,
    /// The `Host` that its services see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// Ports that speak TLS inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub https_ports: Vec<u16>,
}
