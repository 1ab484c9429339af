//! A response of the guest: its head is there, its body is still to come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::error::{GuestError, harmless};
use crate::pool::Pool;

/// Longest answer that is read as a whole.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// How long the guest may take to answer what it can answer at once: for the
/// head, and again for the body.
pub(crate) const ANSWER_BOUND: Duration = Duration::from_secs(30);

/// A response whose body is still to come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<AnswerBody>,
}

/// A body that hands its connection back when it was read to its end, and
/// closes it when it is dropped before that.
pub(crate) struct AnswerBody {
    incoming: Incoming,
    connection: Option<Connection>,
    pool: Option<Arc<Pool>>,
}

/// Body of an error answer: a number from plain routes, a name from RPC.
#[derive(Debug, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
}

impl Answer {
    /// An answer whose connection goes to the pool.
    pub(crate) fn reusable(
        response: Response<Incoming>,
        connection: Connection,
        pool: &Arc<Pool>,
    ) -> Self {
        Self::new(response, connection, Some(Arc::clone(pool)))
    }

    /// An answer whose connection ends with it.
    pub(crate) fn alone(response: Response<Incoming>, connection: Connection) -> Self {
        Self::new(response, connection, None)
    }

    fn new(response: Response<Incoming>, connection: Connection, pool: Option<Arc<Pool>>) -> Self {
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let response = response.map(|incoming| {
            let mut body = AnswerBody {
                incoming,
                connection: Some(connection),
                pool,
            };
            if body.incoming.is_end_stream() && !switches {
                body.finish();
            }
            body
        });
        Self { response }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    pub(crate) fn into_body(self) -> AnswerBody {
        self.response.into_body()
    }

    /// Passes a success on and turns everything else into an error.
    pub(crate) async fn success(self) -> Result<Self, GuestError> {
        let status = self.response.status();
        if status.is_success() {
            return Ok(self);
        }
        let body = self.whole_body().await?;
        let message = serde_json::from_slice::<ErrorBody>(&body)
            .map(|body| body.message)
            .unwrap_or_default();
        let message = harmless(if message.is_empty() {
            status.canonical_reason().unwrap_or("no reason given")
        } else {
            &message
        });
        if let Ok(error) = serde_json::from_slice::<atoll_protocol::connect::RpcError>(&body) {
            return Err(error.into());
        }
        Err(match status {
            StatusCode::UNAUTHORIZED => GuestError::Unauthorized(message),
            status => GuestError::Refused {
                status: status.as_u16(),
                message,
            },
        })
    }

    /// Passes an answer on whose body says where it ends. One that ends with
    /// its connection looks whole wherever it breaks off.
    pub(crate) fn delimited(self) -> Result<Self, GuestError> {
        let headers = self.headers();
        let delimited = match headers.get(header::TRANSFER_ENCODING) {
            // Every other coding ends with the connection, whatever the length says.
            Some(coding) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
            None => {
                headers.contains_key(header::CONTENT_LENGTH) || self.response.body().is_end_stream()
            }
        };
        if delimited {
            Ok(self)
        } else {
            Err(GuestError::Protocol(
                "an answer does not say where it ends".to_owned(),
            ))
        }
    }

    /// Passes an answer on that is of the type that was asked for, not
    /// compressed.
    pub(crate) fn of_type(self, expected: &str) -> Result<Self, GuestError> {
        let headers = self.headers();
        let is = |name, value: &str| headers.get(name).is_some_and(|given| given == value);
        if !is(header::CONTENT_TYPE, expected) {
            return Err(GuestError::Protocol(
                "an answer has another content type than asked for".to_owned(),
            ));
        }
        if headers.contains_key(header::CONTENT_ENCODING)
            && !is(header::CONTENT_ENCODING, "identity")
        {
            return Err(GuestError::Protocol(
                "an answer is compressed and nobody asked for that".to_owned(),
            ));
        }
        Ok(self)
    }

    /// Its whole body, which must be short and come at once.
    pub(crate) async fn whole_body(self) -> Result<Bytes, GuestError> {
        let mut whole = BytesMut::new();
        self.each_chunk(|chunk| {
            if whole.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(GuestError::TooLarge {
                    what: "an answer",
                    limit: ANSWER_BYTES_MAX,
                });
            }
            whole.extend_from_slice(&chunk);
            Ok(())
        })
        .await?;
        Ok(whole.freeze())
    }

    /// Shows its body piece by piece; all of it must come within [`ANSWER_BOUND`].
    pub(crate) async fn each_chunk(
        self,
        mut take: impl FnMut(Bytes) -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        let deadline = Instant::now() + ANSWER_BOUND;
        let late = || GuestError::Timeout {
            what: "finish its answer",
            bound: ANSWER_BOUND,
        };
        let mut body = self.into_body();
        loop {
            let frame = timeout_at(deadline, body.frame())
                .await
                .map_err(|_| late())?;
            let Some(frame) = frame else {
                return Ok(());
            };
            if let Ok(chunk) = frame?.into_data() {
                take(chunk)?;
            }
            // A body that is always ready never reaches the alarm.
            if Instant::now() >= deadline {
                return Err(late());
            }
        }
    }
}

impl AnswerBody {
    fn finish(&mut self) {
        if let (Some(pool), Some(connection)) = (self.pool.take(), self.connection.take()) {
            pool.put(connection);
        }
    }
}

impl std::fmt::Debug for AnswerBody {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("AnswerBody")
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = GuestError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GuestError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.incoming).poll_frame(context));
        match &frame {
            Some(Err(_)) => self.connection = None,
            // Whoever knows the length may never ask for the end.
            Some(Ok(_)) if self.incoming.is_end_stream() => self.finish(),
            Some(Ok(_)) => {}
            None => self.finish(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(GuestError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
