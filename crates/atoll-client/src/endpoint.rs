//! Where the server is, and the key for it.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use http::Uri;
use http::uri::{Authority, Scheme};
use serde::{Deserialize, Serialize};

/// Zone of E2B itself.
const DEFAULT_DOMAIN: &str = "e2b.app";

/// Zones with one address for all sandboxes, `sandbox.{domain}`.
const SHARED_ZONES: [&str; 4] = ["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"];

/// What a local server writes into its home for clients on the same machine.
pub(crate) const ENDPOINT_FILE: &str = "endpoint.json";

/// Why it is not known where the server is.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// No key.
    #[error("`E2B_API_KEY` is not set")]
    NoKey,
    /// A key that cannot be sent.
    #[error("the API key has characters that no key has")]
    InvalidKey,
    /// An address that is none.
    #[error("`{address}` is no address of a server: {reason}")]
    InvalidAddress {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No local server.
    #[error("no server runs with the home `{}`", .0.display())]
    NotServed(PathBuf),
    /// The file of a local server cannot be used.
    #[error("cannot read `{}`", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An address: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
}

impl Address {
    fn parse(text: &str) -> Result<Self, EndpointError> {
        let wrong = |reason| EndpointError::InvalidAddress {
            address: text.to_owned(),
            reason,
        };
        let uri: Uri = text.parse().map_err(|_| wrong("it is no URL"))?;
        let parts = uri.into_parts();
        let scheme = match parts.scheme {
            Some(scheme) if scheme == Scheme::HTTP || scheme == Scheme::HTTPS => scheme,
            _ => return Err(wrong("it must begin with `http://` or `https://`")),
        };
        let authority = parts.authority.ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it must not hold a user or a password"));
        }
        match parts.path_and_query {
            Some(path) if path != "/" => Err(wrong("it must end after the host and port")),
            _ => Ok(Self { scheme, authority }),
        }
    }

    fn secure(host: &str) -> Result<Self, EndpointError> {
        Self::parse(&format!("https://{host}"))
    }

    pub(crate) fn uri(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path_and_query)
            .build()
    }
}

/// Where the server is, and the key for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) api: Address,
    /// One address for the traffic of all sandboxes; otherwise each has a name of its own.
    shared: Option<Address>,
    domain: String,
    pub(crate) key: String,
}

impl fmt::Debug for Endpoint {
    /// Without the key.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Endpoint")
            .field("api", &self.api)
            .field("shared", &self.shared)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// What a local server writes down: see [`ENDPOINT_FILE`].
#[derive(Serialize, Deserialize)]
struct Written {
    url: String,
    api_key: String,
}

impl Endpoint {
    /// A server with one address for everything, as `atoll serve` has.
    ///
    /// # Errors
    /// When the address or the key cannot be used.
    pub fn new(url: &str, key: &str) -> Result<Self, EndpointError> {
        let api = Address::parse(url)?;
        Self {
            shared: Some(api.clone()),
            domain: api.authority.as_str().to_owned(),
            api,
            key: key.to_owned(),
        }
        .checked()
    }

    /// A server with names: `api.{domain}` and `{port}-{sandbox}.{domain}`.
    ///
    /// # Errors
    /// When the name or the key cannot be used.
    pub fn with_domain(domain: &str, key: &str) -> Result<Self, EndpointError> {
        Self {
            api: Address::secure(&format!("api.{domain}"))?,
            shared: if SHARED_ZONES.contains(&domain) {
                Some(Address::secure(&format!("sandbox.{domain}"))?)
            } else {
                None
            },
            domain: domain.to_owned(),
            key: key.to_owned(),
        }
        .checked()
    }

    /// What E2B's clients read from the environment: `E2B_API_KEY`, and
    /// `E2B_API_URL`, `E2B_SANDBOX_URL`, `E2B_DOMAIN`.
    ///
    /// # Errors
    /// When there is no key, or an address cannot be used.
    pub fn from_env() -> Result<Self, EndpointError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, EndpointError> {
        let get = |name| get(name).filter(|value| !value.is_empty());
        let key = get("E2B_API_KEY").ok_or(EndpointError::NoKey)?;
        let domain = get("E2B_DOMAIN").unwrap_or_else(|| DEFAULT_DOMAIN.to_owned());
        let mut endpoint = Self::with_domain(&domain, &key)?;
        if let Some(url) = get("E2B_API_URL") {
            endpoint.api = Address::parse(url.trim_end_matches('/'))?;
        }
        if let Some(url) = get("E2B_SANDBOX_URL") {
            endpoint.shared = Some(Address::parse(url.trim_end_matches('/'))?);
        }
        Ok(endpoint)
    }

    /// The server that runs on this machine with the home at `home`.
    ///
    /// # Errors
    /// When none does, or its file cannot be read by this user.
    pub fn local(home: &Path) -> Result<Self, EndpointError> {
        let path = home.join(ENDPOINT_FILE);
        let unreadable = |source| EndpointError::File {
            path: path.clone(),
            source,
        };
        let mut file = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => EndpointError::NotServed(home.to_owned()),
            _ => unreadable(source),
        })?;
        match file.try_lock_shared() {
            // A server that runs holds it alone. Where one was killed, somebody
            // else may listen at its address by now.
            Ok(()) => return Err(EndpointError::NotServed(home.to_owned())),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(unreadable(source)),
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(unreadable)?;
        let written: Written =
            serde_json::from_slice(&text).map_err(|source| unreadable(source.into()))?;
        Self::new(&written.url, &written.api_key)
    }

    /// Address of the control plane.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.api.scheme, self.api.authority)
    }

    /// The API key, to be handed to other clients.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    fn checked(self) -> Result<Self, EndpointError> {
        if self.key.is_empty() {
            return Err(EndpointError::NoKey);
        }
        if self.key.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(self)
        } else {
            Err(EndpointError::InvalidKey)
        }
    }

    /// Where a port of the guest of a sandbox is reached.
    pub(crate) fn guest_of(
        &self,
        sandbox: &str,
        port: u16,
        domain: Option<&str>,
    ) -> Result<Address, EndpointError> {
        match &self.shared {
            Some(address) => Ok(address.clone()),
            None => Address::secure(&self.host(sandbox, port, domain)),
        }
    }

    /// The name of a port of a sandbox.
    pub(crate) fn host(&self, sandbox: &str, port: u16, domain: Option<&str>) -> String {
        format!("{port}-{sandbox}.{}", domain.unwrap_or(&self.domain))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use atoll_protocol::ENVD_PORT;

    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Endpoint, EndpointError> {
        Endpoint::from_variables(|name| {
            let found = variables.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn guest(endpoint: &Endpoint) -> String {
        let address = endpoint.guest_of("iabc", ENVD_PORT, None).unwrap();
        address.uri("/health").unwrap().to_string()
    }

    #[test]
    fn variables_mean_what_they_mean_to_e2bs_clients() {
        let key = ("E2B_API_KEY", "e2b_00");
        let official = from(&[key]).unwrap();
        assert_eq!(official.api.uri("/x").unwrap(), "https://api.e2b.app/x");
        assert_eq!(guest(&official), "https://sandbox.e2b.app/health");

        let named = from(&[key, ("E2B_DOMAIN", "my.zone")]).unwrap();
        assert_eq!(named.api.uri("/").unwrap(), "https://api.my.zone/");
        assert_eq!(guest(&named), "https://49983-iabc.my.zone/health");
        assert_eq!(named.host("iabc", 80, None), "80-iabc.my.zone");
        assert_eq!(
            named.host("iabc", 80, Some("told.zone")),
            "80-iabc.told.zone"
        );

        let urls = [
            key,
            ("E2B_API_URL", "http://127.0.0.1:7300/"),
            ("E2B_SANDBOX_URL", "http://127.0.0.1:7301"),
            ("E2B_DOMAIN", ""),
        ];
        let local = from(&urls).unwrap();
        assert_eq!(local.api.uri("/x").unwrap(), "http://127.0.0.1:7300/x");
        assert_eq!(guest(&local), "http://127.0.0.1:7301/health");
    }

    #[test]
    fn what_is_no_address_or_key_is_refused() {
        assert!(matches!(from(&[]), Err(EndpointError::NoKey)));
        for key in ["e2b_ 00", "e2b_\n", "schlüssel"] {
            let refused = Endpoint::new("http://h", key);
            assert!(matches!(refused, Err(EndpointError::InvalidKey)), "{key}");
        }
        for url in [
            "127.0.0.1:7300",
            "ftp://h",
            "http://h/prefix",
            "http://user:secret@h",
            "http://",
            "",
        ] {
            assert!(Endpoint::new(url, "k").is_err(), "{url}");
        }
    }

    #[test]
    fn nobody_reads_the_key_from_a_debug_print() {
        let endpoint = Endpoint::new("http://h", "e2b_secret").unwrap();
        assert!(!format!("{endpoint:?}").contains("secret"));
    }

    #[test]
    fn a_local_server_is_found_by_its_home() {
        let home = std::env::temp_dir().join(format!("atoll-endpoint-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let missing = Endpoint::local(&home);
        assert!(matches!(missing, Err(EndpointError::NotServed(_))));
        let text = r#"{"url": "http://127.0.0.1:7300", "api_key": "e2b_00", "pid": 7}"#;
        fs::write(home.join(ENDPOINT_FILE), text).unwrap();
        let left = Endpoint::local(&home);
        assert!(matches!(left, Err(EndpointError::NotServed(_))), "{left:?}");
        let server = File::open(home.join(ENDPOINT_FILE)).unwrap();
        server.lock().unwrap();
        let found = Endpoint::local(&home).unwrap();
        fs::remove_dir_all(&home).unwrap();
        assert_eq!(
            found,
            Endpoint::new("http://127.0.0.1:7300", "e2b_00").unwrap()
        );
    }
}
