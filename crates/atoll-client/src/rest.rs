//! One question to the control plane, and its answer.

use std::time::Duration;

use atoll_protocol::rest::ErrorBody;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::connector::Connector;
use crate::endpoint::Endpoint;
use crate::error::ClientError;

/// How long the server may take to answer; a creation is the longest.
const ANSWER_BOUND: Duration = Duration::from_secs(90);

/// Longest answer.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Longest text of the server that is passed on, in characters.
const MESSAGE_CHARACTERS_MAX: usize = 1024;

const USER_AGENT: &str = concat!("atoll-client/", env!("CARGO_PKG_VERSION"));

/// A connection pool to the control plane of one server.
pub(crate) struct Rest {
    endpoint: Endpoint,
    http: HyperClient<Connector, Full<Bytes>>,
}

/// What came back with a success.
pub(crate) struct Reply {
    pub(crate) headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| ClientError::Protocol(error.to_string()))
    }
}

impl Rest {
    pub(crate) fn new(endpoint: Endpoint, connector: Connector) -> Self {
        Self {
            endpoint,
            http: HyperClient::builder(TokioExecutor::new()).build(connector),
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks without a body.
    pub(crate) async fn ask(&self, method: Method, target: &str) -> Result<Reply, ClientError> {
        self.send(method, target, None, HeaderMap::new()).await
    }

    /// Asks with a JSON body.
    pub(crate) async fn tell(
        &self,
        method: Method,
        target: &str,
        body: &serde_json::Value,
        headers: HeaderMap,
    ) -> Result<Reply, ClientError> {
        self.send(method, target, Some(body.to_string()), headers)
            .await
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        body: Option<String>,
        headers: HeaderMap,
    ) -> Result<Reply, ClientError> {
        let request = self.request(method, target, body, headers)?;
        timeout(ANSWER_BOUND, self.exchange(request))
            .await
            .map_err(|_| ClientError::Timeout(ANSWER_BOUND))?
    }

    /// Asks for something that comes bit by bit.
    pub(crate) async fn open(
        &self,
        method: Method,
        target: &str,
        headers: HeaderMap,
    ) -> Result<Incoming, ClientError> {
        let request = self.request(method, target, None, headers)?;
        let answer = timeout(ANSWER_BOUND, self.http.request(request)).await;
        let answer = answer
            .map_err(|_| ClientError::Timeout(ANSWER_BOUND))?
            .map_err(|error| self.unreachable(&error))?;
        let (parts, body) = answer.into_parts();
        if parts.status.is_success() {
            return Ok(body);
        }
        let said = timeout(ANSWER_BOUND, Limited::new(body, ANSWER_BYTES_MAX).collect()).await;
        let said = said
            .map_err(|_| ClientError::Timeout(ANSWER_BOUND))?
            .map_err(|error| self.unreachable(error.as_ref()))?;
        Err(refusal(parts.status, &said.to_bytes()))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> ClientError {
        ClientError::Unreachable {
            server: self.endpoint.api.authority.to_string(),
            reason: whole_chain(error),
        }
    }

    fn request(
        &self,
        method: Method,
        target: &str,
        body: Option<String>,
        headers: HeaderMap,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let wrong = |error: http::Error| ClientError::Protocol(error.to_string());
        let uri = self.endpoint.api.uri(target).map_err(wrong)?;
        let mut key = HeaderValue::from_str(&self.endpoint.key)
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        key.set_sensitive(true);
        let has_body = body.is_some();
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(body)
            .map_err(wrong)?;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert("x-api-key", key);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if has_body {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        Ok(request)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply, ClientError> {
        let answer = self.http.request(request).await;
        let answer = answer.map_err(|error| self.unreachable(&error))?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| self.unreachable(error.as_ref()))?
            .to_bytes();
        if parts.status.is_success() {
            return Ok(Reply {
                headers: parts.headers,
                body,
            });
        }
        Err(refusal(parts.status, &body))
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    let said = serde_json::from_slice::<ErrorBody>(body).ok();
    let error_code = said.as_ref().and_then(|said| said.error_code.clone());
    let message = said.map(|said| harmless(&said.message)).unwrap_or_default();
    let message = if message.is_empty() {
        status.to_string()
    } else {
        message
    };
    match status {
        StatusCode::UNAUTHORIZED => ClientError::Unauthorized(message),
        StatusCode::NOT_FOUND => ClientError::NotFound(message),
        StatusCode::TOO_MANY_REQUESTS => ClientError::RateLimited(message),
        status => ClientError::Api {
            code: status.as_u16(),
            message,
            error_code,
        },
    }
}

/// A text that cannot move a terminal's cursor or fill a log.
pub(crate) fn harmless(text: &str) -> String {
    text.chars()
        .take(MESSAGE_CHARACTERS_MAX)
        .map(atoll_guest_client::harmless_char)
        .collect()
}

/// An error with its causes, each once.
fn whole_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_typed_and_its_words_are_harmless() {
        let body = br#"{"code": 404, "message": "no \u001b[2J sandbox"}"#;
        let ClientError::NotFound(message) = refusal(StatusCode::NOT_FOUND, body) else {
            panic!("not typed");
        };
        assert_eq!(message, "no \u{fffd}[2J sandbox");
        let ClientError::Api { code, message, .. } =
            refusal(StatusCode::BAD_GATEWAY, b"<html>not ours</html>")
        else {
            panic!("not typed");
        };
        assert_eq!((code, message.as_str()), (502, "502 Bad Gateway"));
    }
}
