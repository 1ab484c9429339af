//! The body of a service's answer on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connection::Connection;
use super::upstream::Upstream;
use crate::body::BodyError;
use crate::crowd::InCrowd;

/// A body that hands its connection back when it was read to its end, and
/// closes it when it is dropped before that.
pub(super) struct Passing {
    body: Incoming,
    connection: Option<Connection>,
    upstream: Arc<Upstream>,
    port: u16,
    _in_use: InCrowd,
}

impl Passing {
    pub(super) fn new(
        body: Incoming,
        connection: Connection,
        upstream: Arc<Upstream>,
        port: u16,
        in_use: InCrowd,
    ) -> Self {
        let mut passing = Self {
            body,
            connection: Some(connection),
            upstream,
            port,
            _in_use: in_use,
        };
        if passing.body.is_end_stream() {
            passing.finish();
        }
        passing
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.upstream.put(self.port, connection);
        }
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Err(_)) => self.connection = None,
            // Whoever knows the length may never ask for the end.
            Some(Ok(_)) if self.body.is_end_stream() => self.finish(),
            Some(Ok(_)) => {}
            None => self.finish(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
