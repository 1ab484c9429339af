//! Somebody else's download of one file, which leaves HTTP between the guest and here where
//! it is large: see [`atoll_protocol::lane`]. Its reader does not notice.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use atoll_protocol::lane::PIECE_BYTES_MAX;
use atoll_siphon::nearby;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use crate::answer::Answer;
use crate::client::GuestClient;
use crate::error::GuestError;
use crate::forward::{ForwardOptions, ForwardedBody, pass_back};
use crate::gateway::FILES_PATH;
use crate::lane::{self, Lane};
use crate::passage::{Route, answer_headers};
use crate::pool::Outgoing;

/// Bytes to be woken up for, while so many are still to come.
const NEWS_BYTES: u64 = 128 * 1024;

/// Whether a request asks for bytes of a file, and for a guest that may send them past HTTP.
pub(crate) fn is_download(head: &Request<()>, route: Route) -> bool {
    route == Route::Download && head.method() == Method::GET && head.uri().path() == FILES_PATH
}

impl GuestClient {
    /// Passes a wish for a file on, of which `head` is made already and which has no body.
    pub(crate) async fn forward_download(
        &self,
        head: Request<()>,
        options: &ForwardOptions,
    ) -> Result<Response<ForwardedBody>, GuestError> {
        let mut request = head.map(|()| Bytes::new());
        lane::ask(request.headers_mut());
        let answer = self.ask(Outgoing::Repeatable(request)).await?;
        if !lane::is_given(&answer) {
            return pass_back(answer, Route::Download, options.silence);
        }
        let (length, headers) = told(&answer)?;
        let (stream, early) = Lane::of(answer).await?.into_parts();
        let whole = WholeFile::new(stream, early, length);
        let mut response = Response::new(ForwardedBody::file(whole, options.silence));
        *response.status_mut() = StatusCode::OK;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// How long the file is, and what the answer says of it that a reader may hear.
fn told(answer: &Answer) -> Result<(u64, http::HeaderMap), GuestError> {
    let length = lane::announced(answer)?;
    let mut headers = answer_headers(answer.headers(), Route::Download);
    // It is all of the file, as it is, whatever else was said.
    for name in [header::CONTENT_ENCODING, header::CONTENT_RANGE] {
        headers.remove(name);
    }
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok((length, headers))
}

/// A file that comes past HTTP: as many bytes as were announced, or an error.
pub(crate) struct WholeFile {
    stream: TcpStream,
    early: Bytes,
    left: u64,
    awaited: u64,
    buffer: BytesMut,
}

impl WholeFile {
    fn new(stream: TcpStream, mut early: Bytes, length: u64) -> Self {
        // What follows the announced bytes is nobody's.
        early.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Self {
            stream,
            early,
            left: length,
            awaited: 1,
            buffer: BytesMut::new(),
        }
    }

    /// How much is still to come.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// More of it; none at its end.
    pub(crate) fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, GuestError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut bytes = std::mem::take(&mut self.early);
        if bytes.is_empty() {
            let awaited = self.left.min(NEWS_BYTES);
            if awaited != self.awaited {
                nearby::with_rare_news(
                    &self.stream,
                    usize::try_from(awaited).unwrap_or(usize::MAX),
                );
                self.awaited = awaited;
            }
            self.buffer.reserve(PIECE_BYTES_MAX);
            let read = ready!(poll_read_buf(
                Pin::new(&mut self.stream),
                context,
                &mut self.buffer
            ));
            bytes = match read {
                Ok(0) => {
                    let short = "less of the file came than was announced";
                    return Poll::Ready(Some(Err(GuestError::Protocol(short.to_owned()))));
                }
                Ok(_) => self.buffer.split().freeze(),
                Err(error) => {
                    let error = GuestError::Disconnected(error.to_string());
                    return Poll::Ready(Some(Err(error)));
                }
            };
            bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        }
        self.left -= bytes.len() as u64;
        Poll::Ready(Some(Ok(bytes)))
    }
}
