//! A request body that somebody else fills, and whose turn it is.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

use crate::answer::Answer;
use crate::error::GuestError;
use crate::moment::{after, from_now};

/// Whose turn it is in an upload.
#[derive(Debug)]
enum Turn {
    /// The guest's, since then: it has bytes to take.
    Guest(Instant),
    /// The caller's, who has no bytes ready.
    Caller,
    /// The guest's, since then: it has all of them and is to answer.
    Answer(Instant),
    /// Nobody's: the caller's bytes failed.
    Failed(io::Error),
}

/// How long the guest may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UploadBounds {
    /// To take the next bytes.
    pub(crate) silence: Duration,
    /// To answer once it has all of them; no bound when absent.
    pub(crate) answer: Option<Duration>,
}

/// The caller's bytes on their way to the guest.
pub(crate) struct Upload<B> {
    body: B,
    turn: Arc<Mutex<Turn>>,
}

/// What the sender of an upload watches.
pub(crate) struct Progress(Arc<Mutex<Turn>>);

/// A body to send, and what to watch meanwhile.
pub(crate) fn watched<B: Body>(body: B) -> (Upload<B>, Progress) {
    let now = Instant::now();
    let turn = if ended(&body) {
        Turn::Answer(now)
    } else {
        Turn::Guest(now)
    };
    let turn = Arc::new(Mutex::new(turn));
    let progress = Progress(Arc::clone(&turn));
    (Upload { body, turn }, progress)
}

impl Progress {
    /// Waits for the answer to an upload as long as the guest does its part.
    pub(crate) async fn guard(
        self,
        sent: impl Future<Output = Result<Answer, GuestError>>,
        bounds: UploadBounds,
    ) -> Result<Answer, GuestError> {
        let mut sent = std::pin::pin!(sent);
        let answer = loop {
            // The turn may change meanwhile, and with it the bound.
            let soon = from_now(bounds.answer.unwrap_or(bounds.silence));
            let (deadline, _) = self.deadline(bounds);
            let check = deadline.min(soon);
            tokio::select! {
                biased;
                answer = &mut sent => break answer,
                () = sleep_until(check) => {
                    if let (passed, Some(late)) = self.deadline(bounds)
                        && passed <= Instant::now()
                    {
                        return Err(late);
                    }
                }
            }
        };
        if let Turn::Failed(error) = &mut *lock(&self.0) {
            let error = std::mem::replace(error, io::ErrorKind::Other.into());
            return Err(GuestError::Source(error));
        }
        answer
    }

    /// When to look again, and what the guest failed to do by then, if it is its turn.
    fn deadline(
        &self,
        UploadBounds { silence, answer }: UploadBounds,
    ) -> (Instant, Option<GuestError>) {
        let late = |what, since: Instant, bound| {
            (
                after(since, bound),
                Some(GuestError::Timeout { what, bound }),
            )
        };
        match (&*lock(&self.0), answer) {
            (Turn::Guest(since), _) => late("take the upload", *since, silence),
            (Turn::Answer(since), Some(bound)) => late("answer", *since, bound),
            (Turn::Answer(_), None) | (Turn::Caller | Turn::Failed(_), _) => {
                (from_now(silence), None)
            }
        }
    }
}

fn ended(body: &impl Body) -> bool {
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

fn lock(turn: &Mutex<Turn>) -> MutexGuard<'_, Turn> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let (turn, polled) = match polled {
            Poll::Pending => (Turn::Caller, Poll::Pending),
            Poll::Ready(Some(Err(error))) => {
                let error = into_io(error.into());
                let kind = error.kind();
                (Turn::Failed(error), Poll::Ready(Some(Err(kind.into()))))
            }
            Poll::Ready(Some(Ok(frame))) => {
                let now = Instant::now();
                // Whoever knows the length does not ask for the end.
                let turn = if ended(&self.body) {
                    Turn::Answer(now)
                } else {
                    Turn::Guest(now)
                };
                (turn, Poll::Ready(Some(Ok(frame))))
            }
            Poll::Ready(None) => (Turn::Answer(Instant::now()), Poll::Ready(None)),
        };
        *lock(&self.turn) = turn;
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The caller's error as it was, when it is one of input and output.
pub(crate) fn into_io(error: Box<dyn Error + Send + Sync>) -> io::Error {
    match error.downcast::<io::Error>() {
        Ok(error) => *error,
        Err(error) => io::Error::other(error),
    }
}
