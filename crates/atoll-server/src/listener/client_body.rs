//! The body of a client's request, and whether anybody read it.
//!
//! A request that is answered before its body was read leaves bytes on the
//! connection that nobody wants. The connection has to end then, and the
//! client has to be told: it would send its next request into the void.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// The body of a request.
pub(crate) struct ClientBody {
    body: Incoming,
    /// Chunks do not say beforehand that they are the last.
    has_ended: bool,
    left_unread: Arc<AtomicBool>,
}

/// Whether somebody dropped a body before its end.
#[derive(Debug, Clone)]
pub(super) struct Fate(Arc<AtomicBool>);

impl Fate {
    pub(super) fn is_left_unread(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ClientBody {
    pub(super) fn new(body: Incoming) -> (Self, Fate) {
        let left_unread = Arc::new(AtomicBool::new(false));
        let fate = Fate(Arc::clone(&left_unread));
        let has_ended = body.is_end_stream();
        let body = Self {
            body,
            has_ended,
            left_unread,
        };
        (body, fate)
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if !self.has_ended {
            self.left_unread.store(true, Ordering::Relaxed);
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.has_ended |= matches!(polled, Poll::Ready(None)) || self.body.is_end_stream();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
