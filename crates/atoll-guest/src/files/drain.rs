//! What a client still sends after its request is decided.
//!
//! A client that is cut off while it sends sees a broken connection instead
//! of the reason. So what it sends is read and dropped, for a while: nobody
//! can keep us reading for ever by sending for ever.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::timeout;

/// Most that is read and dropped.
const DRAIN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest time for it.
const DRAIN_BOUND: Duration = Duration::from_secs(5);

/// The same for somebody who may not ask at all.
const STRANGER_BYTES_MAX: usize = 256 * 1024;
const STRANGER_BOUND: Duration = Duration::from_secs(2);

/// Answers, and then lets the client finish or closes the connection.
pub(crate) async fn drain(request: Request, next: Next) -> Response {
    let (request, body) = shared(request);
    let response = next.run(request).await;
    let finished = timeout(DRAIN_BOUND, finish(body, DRAIN_BYTES_MAX)).await;
    close_unless(
        finished.is_ok_and(|progress| progress == Progress::Ended),
        response,
    )
}

/// Answers a request that nobody has looked into.
pub(crate) async fn refuse(request: Request, response: Response) -> Response {
    let (_, body) = shared(request);
    let finished = timeout(STRANGER_BOUND, finish(body, STRANGER_BYTES_MAX)).await;
    close_unless(
        finished.is_ok_and(|progress| progress == Progress::Ended),
        response,
    )
}

/// A request whose body can be read on after its handler has let go of it.
fn shared(request: Request) -> (Request, Shared) {
    let (head, body) = request.into_parts();
    let body = Shared(Arc::new(Mutex::new(Source {
        bytes: body.into_data_stream(),
        progress: if head.headers.contains_key(header::EXPECT) {
            Progress::Unasked
        } else {
            Progress::Under
        },
    })));
    let request = Request::from_parts(head, Body::from_stream(body.clone()));
    (request, body)
}

/// Says that the connection is over when its bytes are not.
fn close_unless(ended: bool, mut response: Response) -> Response {
    if !ended {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn finish(mut body: Shared, bytes_max: usize) -> Progress {
    let mut read = 0;
    loop {
        match body.progress() {
            Progress::Under if read <= bytes_max => {}
            other => return other,
        }
        if let Some(Ok(bytes)) = body.next().await {
            read += bytes.len();
        }
    }
}

/// How far a body has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The client waits for `100 Continue`, which the first read sends.
    Unasked,
    Under,
    Ended,
    Broken,
}

struct Source {
    bytes: BodyDataStream,
    progress: Progress,
}

/// A body that its reader may drop before its end.
#[derive(Clone)]
struct Shared(Arc<Mutex<Source>>);

impl Shared {
    fn progress(&self) -> Progress {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .progress
    }
}

impl Stream for Shared {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let polled = match source.progress {
            Progress::Ended | Progress::Broken => return Poll::Ready(None),
            Progress::Unasked | Progress::Under => source.bytes.poll_next_unpin(context),
        };
        source.progress = match &polled {
            Poll::Pending | Poll::Ready(Some(Ok(_))) => Progress::Under,
            Poll::Ready(Some(Err(_))) => Progress::Broken,
            Poll::Ready(None) => Progress::Ended,
        };
        polled.map(|item| item.map(|bytes| bytes.map_err(io::Error::other)))
    }
}
