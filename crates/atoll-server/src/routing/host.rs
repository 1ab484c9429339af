//! Host names: which of them are the server's own, and which are a sandbox's.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderValue;

/// Longest host name, as in DNS.
const HOST_BYTES_MAX: usize = 253;

/// Length of a sandbox's name in a host that nobody told us is ours.
const SANDBOX_ID_BYTES: usize = 21;

/// A domain under which no sandboxes can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot be the domain of sandboxes")]
pub struct DomainError(String);

impl DomainError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "give a name such as `sandboxes.example.org`: labels of a-z, 0-9 and `-`, no port, no `*`"
    }
}

/// The names that this server answers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    domain: Option<String>,
}

impl Names {
    /// Sandboxes are at `{port}-{id}.{domain}`, the control plane is at
    /// `api.{domain}`, and at `sandbox.{domain}` headers say which sandbox.
    ///
    /// # Errors
    /// When it is not a name.
    pub fn with_domain(mut self, domain: &str) -> Result<Self, DomainError> {
        self.domain = Some(checked(domain)?);
        Ok(self)
    }

    /// The domain of sandboxes, if there is one.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// What a host is here.
    pub(super) fn place(&self, host: &Host) -> Place {
        let Host::Name(name) = host else {
            return Place::Shared;
        };
        if self.domain.as_deref() == Some(name) {
            return Place::Shared;
        }
        let Some((label, rest)) = name.split_once('.') else {
            // `localhost`, or what a private network calls this server: nobody
            // on the internet can have such a name, and no sandbox has one.
            return Place::Shared;
        };
        let is_ours = rest == "localhost" || self.domain.as_deref() == Some(rest);
        if is_ours {
            return match label {
                "sandbox" => Place::Shared,
                label if names_a_port(label) => Place::Sandbox(label.to_owned()),
                _ => Place::Control,
            };
        }
        // Some wildcard zone that leads here, of which nobody told us.
        let is_sandbox = names_a_port(label)
            && label
                .split('-')
                .nth(1)
                .is_some_and(|id| id.len() == SANDBOX_ID_BYTES && id.starts_with('i'));
        if is_sandbox {
            Place::Sandbox(label.to_owned())
        } else {
            Place::Control
        }
    }
}

/// Whether a label starts like `{port}-`.
fn names_a_port(label: &str) -> bool {
    label
        .split_once('-')
        .is_some_and(|(port, _)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn checked(name: &str) -> Result<String, DomainError> {
    let lower = name.to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_name = lower.len() <= HOST_BYTES_MAX
        && lower.split('.').all(is_label)
        && lower.parse::<IpAddr>().is_err();
    if is_name {
        Ok(lower)
    } else {
        Err(DomainError(name.to_owned()))
    }
}

/// What a host is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// It names a sandbox: its first label.
    Sandbox(String),
    /// Headers say which sandbox, if any.
    Shared,
    /// The control plane's alone.
    Control,
}

/// A host without its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Address(IpAddr),
    /// In lower case, without a dot at its end.
    Name(String),
}

impl Host {
    /// Reads `host` or `host:port`.
    pub(super) fn parse(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?;
        if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let is_port = port.is_empty() || is_port(port.strip_prefix(':')?);
            let address: Ipv6Addr = address.parse().ok()?;
            return is_port.then_some(Self::Address(address.into()));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        if port.is_some_and(|port| !is_port(port)) {
            return None;
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address(address));
        }
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let is_name = !host.is_empty()
            && host.len() <= HOST_BYTES_MAX
            && host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        is_name.then_some(Self::Name(host))
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Name(name) => name.clone(),
        }
    }
}

fn is_port(text: &str) -> bool {
    (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}
