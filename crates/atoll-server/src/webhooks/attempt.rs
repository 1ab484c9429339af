//! One request to a hook: bounded in time, followed nowhere, and nothing of the
//! answer is read but its status.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use tokio::time::timeout;

use super::hook::Hook;
use super::signature::sign;

/// How long a connection may take to be there.
const CONNECT_BOUND: Duration = Duration::from_secs(5);
/// How long a hook may take to answer.
const ANSWER_BOUND: Duration = Duration::from_secs(10);

const USER_AGENT: &str = concat!("atoll/", env!("CARGO_PKG_VERSION"));

pub(super) type HookClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Why a hook has not been told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Untold {
    #[error("it answered {0}, and only 2xx counts")]
    Refused(StatusCode),
    #[error("it did not answer within {} s", ANSWER_BOUND.as_secs())]
    TooLate,
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
}

/// What makes connections to `hooks`. They are not kept: the next event may be far off.
pub(super) fn client(hooks: &[Hook]) -> io::Result<HookClient> {
    client_with(hooks, || {
        let trusting = tls()?.with_native_roots()?;
        Ok(trusting.with_no_client_auth())
    })
}

fn tls() -> io::Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)
}

/// The same; whom this machine trusts is asked only if a hook needs to know.
fn client_with(
    hooks: &[Hook],
    trusting: impl FnOnce() -> io::Result<ClientConfig>,
) -> io::Result<HookClient> {
    let is_https = |hook: &Hook| hook.url.scheme() == Some(&Scheme::HTTPS);
    let tls = if hooks.iter().any(is_https) {
        trusting()?
    } else {
        tls()?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth()
    };
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(CONNECT_BOUND));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain);
    Ok(Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(connector))
}

/// Tells `hook` once.
pub(super) async fn attempt(
    client: &HookClient,
    hook: &Hook,
    id: &str,
    timestamp_s: i64,
    body: &str,
) -> Result<(), Untold> {
    let unreachable = |error: &dyn std::error::Error| Untold::Unreachable(innermost(error));
    let signature = sign(&hook.secret, id, timestamp_s, body);
    let request = Request::builder()
        .method(Method::POST)
        .uri(hook.url.clone())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, HeaderValue::from_static(USER_AGENT))
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp_s)
        .header("webhook-signature", signature)
        .body(Full::new(Bytes::from(body.to_owned())))
        .map_err(|error| unreachable(&error))?;
    let answer = timeout(ANSWER_BOUND, client.request(request)).await;
    let answer = answer.map_err(|_| Untold::TooLate)?;
    let status = answer.map_err(|error| unreachable(&error))?.status();
    // A redirection too: the operator names addresses, and nobody else.
    if status.is_success() {
        Ok(())
    } else {
        Err(Untold::Refused(status))
    }
}

/// What the system said; the texts around it may repeat the address.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_needed_for_encrypted_hooks_alone() {
        let hook = |url| Hook::new(url, "0123456789abcdef", &[]).unwrap();
        let none = || Err(io::ErrorKind::NotFound.into());
        let plain = hook("http://h/");
        assert!(client_with(std::slice::from_ref(&plain), none).is_ok());
        let refused = client_with(&[plain, hook("https://h/")], none).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
    }
}
