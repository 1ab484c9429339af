//! Where a request goes, decided from its head alone.
//!
//! | first that holds | goes to |
//! |---|---|
//! | the host is `{port}-{id}.{domain}` | that port of that sandbox |
//! | `E2b-Sandbox-Id` and `E2b-Sandbox-Port`, on a host that all sandboxes share | that port of that sandbox |
//! | the path is `/files` | the sandbox by whose token the URL is signed |
//! | else | the control plane |
//!
//! A host that names a sandbox comes before headers: a page of one sandbox can
//! set headers on requests to its own host, and must not reach another with
//! them. For the same reason headers count only on hosts that no page of a
//! sandbox or of a stranger can be at: addresses, names without a dot, the
//! domain itself, `sandbox.{domain}`, and further names of the server.
//!
//! **Invariant**: one request, one host. Two that differ are refused, because
//! somebody on the way may have decided by the other one.

mod host;

use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};

pub use host::{DomainError, Names};
use host::{Host, Place};

/// Header that names a sandbox.
const SANDBOX_ID: &str = "e2b-sandbox-id";
/// Header that names its port.
const SANDBOX_PORT: &str = "e2b-sandbox-port";

/// Headers that say where a request goes, and nothing to whoever is there.
pub(crate) const ROUTING_HEADERS: [&str; 2] = [SANDBOX_ID, SANDBOX_PORT];

/// Longest name of a sandbox that is repeated in an answer.
const ID_BYTES_MAX: usize = 64;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Everything that is not for one sandbox.
    Control,
    /// `/files`, of the sandbox that its signature leads to.
    SignedFile,
    /// A port of a sandbox, which may or may not be there.
    Sandbox {
        /// Its name: lower-case letters and digits.
        id: String,
        /// The port.
        port: u16,
    },
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misdirected {
    #[error("the request names no host\nhint: send a Host header")]
    NoHost,
    #[error(
        "the request names more than one host\nhint: send one Host header, and the same host in the target"
    )]
    TwoHosts,
    #[error(
        "the host of the request cannot be read\nhint: expected a name or an address, and maybe a port"
    )]
    Host,
    #[error("the name of a sandbox has characters other than a-z and 0-9")]
    Id,
    #[error("the port of a sandbox is not a number from 1 to 65535")]
    Port,
    #[error(
        "headers name a sandbox or a port, but not both once\nhint: send E2b-Sandbox-Id and E2b-Sandbox-Port"
    )]
    HalfNamed,
    #[error(
        "headers name a sandbox, but not on the host `{0}`\nhint: use the server's address, a name without a dot such as `localhost`, or `sandbox.` before its domain"
    )]
    NotHere(String),
    #[error(
        "the method CONNECT leads nowhere\nhint: WebSockets are opened with an Upgrade, over HTTP/1.1"
    )]
    Connect,
    #[error("the body of the request has a transfer coding that is not just `chunked`")]
    TransferCoding,
}

/// A request's destination, and the host it was sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Routed {
    pub(crate) destination: Destination,
    /// As the client wrote it, with its port. Absent only in HTTP/1.0.
    pub(crate) authority: Option<HeaderValue>,
}

/// Decides where a request goes, and leaves only the path and the query of
/// its target.
///
/// # Errors
/// When it cannot be decided, or not by everybody in the same way.
pub(crate) fn route<B>(names: &Names, request: &mut Request<B>) -> Result<Routed, Misdirected> {
    if request.method() == Method::CONNECT {
        return Err(Misdirected::Connect);
    }
    check_transfer_coding(request.headers())?;
    let authority = authority(request)?;
    let host = match &authority {
        Some(authority) => Some(Host::parse(authority).ok_or(Misdirected::Host)?),
        None => None,
    };
    let target = request.uri().path_and_query().cloned();
    *request.uri_mut() = target.map_or_else(|| Uri::from_static("/"), Uri::from);

    let destination = match host.map(|host| (names.place(&host), host)) {
        Some((Place::Sandbox(label), _)) => by_label(&label)?,
        Some((Place::Shared, _)) | None => {
            by_headers(request.headers())?.unwrap_or_else(|| by_path(request.uri()))
        }
        Some((Place::Control, host)) => match by_headers(request.headers())? {
            Some(_) => return Err(Misdirected::NotHere(host.shown())),
            None => by_path(request.uri()),
        },
    };
    Ok(Routed {
        destination,
        authority,
    })
}

/// Codings besides `chunked` would have to be undone by whoever comes next,
/// and a list can be read in two ways.
fn check_transfer_coding(headers: &HeaderMap) -> Result<(), Misdirected> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_right = match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    };
    if is_right {
        Ok(())
    } else {
        Err(Misdirected::TransferCoding)
    }
}

/// The one host that a request names.
fn authority<B>(request: &Request<B>) -> Result<Option<HeaderValue>, Misdirected> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Misdirected::TwoHosts);
    }
    let Some(target) = request.uri().authority() else {
        return match host {
            Some(host) => Ok(Some(host.clone())),
            None if request.version() == Version::HTTP_10 => Ok(None),
            None => Err(Misdirected::NoHost),
        };
    };
    let target = target.as_str();
    match host {
        Some(host) if !host.as_bytes().eq_ignore_ascii_case(target.as_bytes()) => {
            Err(Misdirected::TwoHosts)
        }
        Some(_) | None => HeaderValue::from_str(target)
            .map(Some)
            .map_err(|_| Misdirected::Host),
    }
}

fn by_path(uri: &Uri) -> Destination {
    if uri.path() == "/files" {
        Destination::SignedFile
    } else {
        Destination::Control
    }
}

fn by_headers(headers: &HeaderMap) -> Result<Option<Destination>, Misdirected> {
    let once = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let value = values.next();
        match values.next() {
            Some(_) => Err(Misdirected::HalfNamed),
            None => Ok(value.map(HeaderValue::as_bytes)),
        }
    };
    match (once(SANDBOX_ID)?, once(SANDBOX_PORT)?) {
        (None, None) => Ok(None),
        (Some(id), Some(port)) => {
            let id = std::str::from_utf8(id).map_err(|_| Misdirected::Id)?;
            let port = std::str::from_utf8(port).map_err(|_| Misdirected::Port)?;
            Ok(Some(sandbox(id, port)?))
        }
        (Some(_), None) | (None, Some(_)) => Err(Misdirected::HalfNamed),
    }
}

/// `{port}-{id}`, and whatever an old client put after another `-`.
fn by_label(label: &str) -> Result<Destination, Misdirected> {
    let (port, id) = label.split_once('-').ok_or(Misdirected::Id)?;
    sandbox(id, port)
}

fn sandbox(id: &str, port: &str) -> Result<Destination, Misdirected> {
    // `{id}-{client}` is what ids looked like once.
    let id = id.split_once('-').map_or(id, |(id, _client)| id);
    let is_name = !id.is_empty()
        && id.len() <= ID_BYTES_MAX
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if !is_name {
        return Err(Misdirected::Id);
    }
    Ok(Destination::Sandbox {
        id: id.to_owned(),
        port: port_number(port).ok_or(Misdirected::Port)?,
    })
}

/// Digits alone: no sign, no space, no zero in front.
fn port_number(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
