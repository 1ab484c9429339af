//! Bodies whose sender may not be silent for ever, and connections on which
//! something has to move.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::body::BodyError;

/// Its sender said nothing for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing came for {} s", .0.as_secs())]
pub(crate) struct Silent(Duration);

/// Whether bytes moved since somebody looked.
#[derive(Debug)]
pub(crate) struct Life(AtomicBool);

impl Life {
    /// What has just begun lives.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Something moved.
    pub(crate) fn moved(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Waits until nothing has moved for `bound`, or a little longer.
    pub(crate) async fn silence(&self, bound: Duration) {
        while self.0.swap(false, Ordering::Relaxed) {
            sleep(bound).await;
        }
    }
}

/// A body that fails when somebody waits for more of it longer than a bound.
pub(crate) struct Talkative<B> {
    body: B,
    bound: Duration,
    /// Armed only while somebody waits.
    alarm: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl<B> Talkative<B> {
    pub(crate) fn new(body: B, bound: Duration) -> Self {
        Self {
            body,
            bound,
            alarm: None,
            is_waiting: false,
        }
    }

    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + self.bound)));
        if !self.is_waiting {
            alarm.as_mut().reset(Instant::now() + self.bound);
            self.is_waiting = true;
        }
        alarm.as_mut().poll(context)
    }
}

impl<B> Body for Talkative<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.is_waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let bound = self.bound;
        self.poll_alarm(context)
            .map(|()| Some(Err(Silent(bound).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
