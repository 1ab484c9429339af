//! Connections to the server, with TLS where the address says so.

use std::io;
use std::sync::Arc;

use atoll_guest_client::{Connecting, GuestStream};
use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tower_service::Service as _;

/// Makes connections. Trusts what the machine trusts, and `SSL_CERT_FILE`.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

pub(crate) fn connector() -> io::Result<Connector> {
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_nodelay(true);
    Ok(HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::ring::default_provider())?
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain))
}

/// A way to `address` for the client of a guest.
pub(crate) fn way(
    connector: &Connector,
    address: Uri,
) -> Arc<dyn Fn() -> Connecting + Send + Sync> {
    let connector = connector.clone();
    Arc::new(move || {
        let mut connector = connector.clone();
        let address = address.clone();
        Box::pin(async move {
            let stream = connector.call(address).await.map_err(io::Error::other)?;
            Ok(match stream {
                MaybeHttpsStream::Http(stream) => GuestStream::Socket(stream.into_inner()),
                encrypted @ MaybeHttpsStream::Https(_) => {
                    GuestStream::Other(Box::new(TokioIo::new(encrypted)))
                }
            })
        })
    })
}
