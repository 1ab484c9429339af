//! What a caller can ask for.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use atoll_protocol::rest::{LimitsWish, OnTimeout};
use serde::Serialize;
use serde_json::{Value, json};

/// The template when none is named.
const DEFAULT_TEMPLATE: &str = "base";

/// How a sandbox is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// Name or id of its template.
    pub template: String,
    /// How long it lives; the server's default when absent.
    pub timeout: Option<Duration>,
    /// What its owner writes on it.
    pub metadata: BTreeMap<String, String>,
    /// Environment of its commands.
    pub envs: BTreeMap<String, String>,
    /// What it may use; as its template has it where nothing is said.
    pub limits: LimitsWish,
    /// Whether it may reach the internet; the server's default when absent.
    pub allow_internet_access: Option<bool>,
    /// What it may reach, and who may reach it.
    pub network: Option<NetworkOptions>,
    /// What happens at the end of its time.
    pub on_timeout: OnTimeout,
    /// Whether traffic wakes it up when it is paused.
    pub auto_resume: bool,
    /// The same key twice gives the same sandbox: 1 to 255 of `[a-z0-9-]`.
    pub idempotency_key: Option<String>,
    /// The agent for whom it is made, for whoever looks at events.
    pub agent: Option<String>,
    /// And the task.
    pub task: Option<String>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self::template(DEFAULT_TEMPLATE)
    }
}

impl CreateOptions {
    /// A sandbox of that template, everything else as the server has it.
    #[must_use]
    pub fn template(name: impl Into<String>) -> Self {
        Self {
            template: name.into(),
            timeout: None,
            metadata: BTreeMap::new(),
            envs: BTreeMap::new(),
            limits: LimitsWish::default(),
            allow_internet_access: None,
            network: None,
            on_timeout: OnTimeout::Kill,
            auto_resume: false,
            idempotency_key: None,
            agent: None,
            task: None,
        }
    }

    /// The body of the request; what was not said is not in it.
    pub(crate) fn body(&self) -> Value {
        let mut body = json!({ "templateID": self.template });
        let mut set = |name: &str, value: Value| body[name] = value;
        if let Some(timeout) = self.timeout {
            set("timeout", json!(whole_seconds(timeout)));
        }
        if !self.metadata.is_empty() {
            set("metadata", json!(self.metadata));
        }
        if !self.envs.is_empty() {
            set("envVars", json!(self.envs));
        }
        if self.limits != LimitsWish::default() {
            set("limits", json!(self.limits));
        }
        if let Some(allowed) = self.allow_internet_access {
            set("allow_internet_access", json!(allowed));
        }
        if let Some(network) = &self.network {
            set("network", json!(network));
        }
        if self.on_timeout == OnTimeout::Pause {
            set("autoPause", json!(true));
        }
        if self.auto_resume {
            set("autoResume", json!({ "enabled": true }));
        }
        body
    }
}

/// What a sandbox may reach, and who may reach it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkOptions {
    /// Addresses and ranges it may reach whatever is denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    /// Addresses and ranges it may not reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    /// Whether everybody may reach its ports; `false` asks for the traffic token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// The `Host` that its services see; `${PORT}` stands for the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// Ports that speak TLS inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub https_ports: Vec<u16>,
}

/// A span of time; open where nothing is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// From then on.
    pub start: Option<SystemTime>,
    /// Until then.
    pub end: Option<SystemTime>,
}

/// Which entries of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// From then on.
    pub start: Option<SystemTime>,
    /// At most so many.
    pub limit: Option<u32>,
}

/// Rounded up: nobody wants less time than was asked for.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_said_is_not_sent() {
        let body = CreateOptions::default().body();
        assert_eq!(body, json!({ "templateID": "base" }));
    }

    #[test]
    fn what_was_said_is_sent_as_e2b_spells_it() {
        let options = CreateOptions {
            timeout: Some(Duration::from_millis(1500)),
            metadata: [("a".to_owned(), "b".to_owned())].into(),
            envs: [("X".to_owned(), "1".to_owned())].into(),
            allow_internet_access: Some(false),
            network: Some(NetworkOptions {
                deny_out: vec!["0.0.0.0/0".to_owned()],
                allow_public_traffic: Some(false),
                ..NetworkOptions::default()
            }),
            ..CreateOptions::template("mine")
        };
        let expected = json!({
            "templateID": "mine",
            "timeout": 2,
            "metadata": {"a": "b"},
            "envVars": {"X": "1"},
            "allow_internet_access": false,
            "network": {"denyOut": ["0.0.0.0/0"], "allowPublicTraffic": false},
        });
        assert_eq!(options.body(), expected);
    }
}
