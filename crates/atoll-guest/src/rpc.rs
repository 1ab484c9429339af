//! Both RPC services as one, and what they share.

use std::sync::Arc;
use std::time::Duration;

use atoll_protocol::KEEPALIVE_HEADER;
use atoll_protocol::envd::filesystem::FilesystemExt;
use atoll_protocol::envd::process::ProcessExt;
use connectrpc::{ConnectRpcService, Limits, RequestContext, Router};

use crate::filesystem::Filesystem;
use crate::process::Commands;

/// Largest request: input of 3 MB in base64 and its frame fit.
const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Silence after which a stream says that it lives.
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);

/// Everything under `/{package}.{Service}/{Method}`.
pub(crate) type Service = ConnectRpcService<Router>;

/// The services, ready to be mounted.
pub(crate) fn service(commands: Commands, filesystem: Filesystem) -> Service {
    let limits = Limits::default()
        .with_max_request_body_size(REQUEST_BYTES_MAX)
        .with_max_message_size(REQUEST_BYTES_MAX);
    let router = Arc::new(commands).register(Router::new());
    let router = Arc::new(filesystem).register(router);
    ConnectRpcService::new(router).with_limits(limits)
}

/// Longest silence that can be asked for.
const KEEPALIVE_SECONDS_MAX: u64 = 3600;

/// The silence that the client of a stream allows.
pub(crate) fn keepalive_interval(context: &RequestContext) -> Duration {
    context
        .header(KEEPALIVE_HEADER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .filter(|seconds: &u64| *seconds > 0)
        .map_or(KEEPALIVE_DEFAULT, |seconds| {
            Duration::from_secs(seconds.min(KEEPALIVE_SECONDS_MAX))
        })
}
