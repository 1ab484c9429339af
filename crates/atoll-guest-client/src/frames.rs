//! Frames of a stream that pass through: their headers are checked, their
//! payloads are not looked at.

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_protocol::connect::{FrameError, FrameScanner};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};

use crate::error::GuestError;

/// Checks the frames of a Connect stream as it passes: flags that were agreed
/// on, payloads of at most `limit` bytes ([`crate::FRAME_BYTES_MAX`] for a
/// guest's), a last frame, and nothing after it. What is wrong is a
/// [`GuestError`]; nothing follows it. The last frame ends the body and drops
/// the one below, whether or not the guest closes its own.
pub fn bounded_frames<B>(body: B, limit: usize) -> BoundedFrames<B> {
    BoundedFrames {
        body: Some(body),
        scanner: FrameScanner::new(limit),
        failure: None,
    }
}

/// A body whose frames are checked; see [`bounded_frames`].
///
/// A frame's header passes only when it is all there and right. So whoever
/// gets an error while [`Self::is_between_frames`] can still end the stream
/// in good order, with a last frame of its own that says what happened.
#[derive(Debug)]
pub struct BoundedFrames<B> {
    /// Absent when nothing more is to be read of it.
    body: Option<B>,
    scanner: FrameScanner,
    /// What is wrong right after the bytes that were passed last.
    failure: Option<FrameError>,
}

impl<B> BoundedFrames<B> {
    /// Whether what was passed on ends with a whole frame, or is nothing.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.scanner.is_between_frames()
    }

    /// Whether the last frame was passed on.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.scanner.has_ended()
    }

    /// What of a chunk may pass.
    fn check(&mut self, chunk: &Bytes) -> Bytes {
        let mut held = BytesMut::from(self.scanner.held());
        let (passed, checked) = self.scanner.scan(chunk);
        // What comes after the last frame is nobody's, however the two were cut.
        self.failure = checked.err().filter(|_| !self.has_ended());
        if passed == 0 {
            return Bytes::new();
        }
        if held.is_empty() {
            return chunk.slice(..passed);
        }
        held.extend_from_slice(&chunk[..passed]);
        held.freeze()
    }
}

impl<B> Body for BoundedFrames<B>
where
    B: Body<Data = Bytes> + Unpin,
    GuestError: From<B::Error>,
{
    type Data = Bytes;
    type Error = GuestError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GuestError>>> {
        loop {
            if let Some(error) = self.failure.take() {
                return Poll::Ready(Some(Err(error.into())));
            }
            let Some(body) = &mut self.body else {
                return Poll::Ready(None);
            };
            match std::task::ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let Ok(chunk) = frame.into_data() else {
                        continue;
                    };
                    let passed = self.check(&chunk);
                    if self.failure.is_some() || self.has_ended() {
                        self.body = None;
                    }
                    if !passed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(passed))));
                    }
                }
                Some(Err(error)) => {
                    self.body = None;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    self.body = None;
                    let between = self.is_between_frames() && self.scanner.held().is_empty();
                    let what = if between {
                        "a stream ended without its last frame"
                    } else {
                        "a stream ended inside a frame"
                    };
                    return Poll::Ready(Some(Err(GuestError::Protocol(what.to_owned()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none() && self.failure.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // What is wrong may end it before what the body announced.
        SizeHint::default()
    }
}
