//! Bytes of a file as they come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::Body;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::answer::AnswerBody;
use crate::error::GuestError;
use crate::moment::from_now;

/// How many bytes a download may have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    /// As many as there are.
    Any,
    /// No more than this.
    AtMost(u64),
    /// This many.
    Exactly(u64),
}

/// Bytes of a file as they come. What the guest does wrong is an
/// [`io::Error`] around a [`GuestError`]; nothing follows it but itself.
#[derive(Debug)]
pub struct FileReader {
    body: AnswerBody,
    chunk: Bytes,
    length: Length,
    received: u64,
    silence: Duration,
    alarm: Pin<Box<Sleep>>,
    waiting: bool,
    over: Over,
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    No,
    Whole,
    Failed,
}

impl FileReader {
    /// Refuses at once a body that announces another length than allowed.
    pub(crate) fn new(
        body: AnswerBody,
        length: Length,
        silence: Duration,
    ) -> Result<Self, GuestError> {
        if let Some(announced) = body.size_hint().exact() {
            length.check(announced)?;
            length.check_end(announced)?;
        }
        Ok(Self {
            body,
            chunk: Bytes::new(),
            length,
            received: 0,
            silence,
            alarm: Box::pin(sleep_until(Instant::now())),
            waiting: false,
            over: Over::No,
        })
    }

    /// Waits for bytes; none at the end.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<(), GuestError>> {
        while self.chunk.is_empty() && self.over == Over::No {
            if !self.waiting {
                // Counts while somebody waits, not while the caller is busy.
                let next = from_now(self.silence);
                self.alarm.as_mut().reset(next);
                self.waiting = true;
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(frame)) => {
                    self.waiting = false;
                    let chunk = frame?.into_data().unwrap_or_default();
                    self.received += chunk.len() as u64;
                    self.length.check(self.received)?;
                    self.chunk = chunk;
                }
                Poll::Ready(None) => {
                    self.length.check_end(self.received)?;
                    self.over = Over::Whole;
                }
                Poll::Pending => {
                    std::task::ready!(self.alarm.as_mut().poll(context));
                    return Poll::Ready(Err(GuestError::Timeout {
                        what: "send more of the file",
                        bound: self.silence,
                    }));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Length {
    fn check(self, bytes: u64) -> Result<(), GuestError> {
        match self {
            Self::AtMost(most) if bytes > most => Err(GuestError::TooLarge {
                what: "a file",
                limit: usize::try_from(most).unwrap_or(usize::MAX),
            }),
            Self::Exactly(length) if bytes > length => Err(GuestError::Protocol(
                "more of the file came than was asked for".to_owned(),
            )),
            Self::Any | Self::AtMost(_) | Self::Exactly(_) => Ok(()),
        }
    }

    fn check_end(self, bytes: u64) -> Result<(), GuestError> {
        match self {
            Self::Exactly(length) if bytes != length => Err(GuestError::Protocol(
                "less of the file came than was announced".to_owned(),
            )),
            Self::Any | Self::AtMost(_) | Self::Exactly(_) => Ok(()),
        }
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.over == Over::Failed {
            let error = GuestError::Disconnected("the file was given up before".to_owned());
            return Poll::Ready(Err(io::Error::other(error)));
        }
        if let Err(error) = std::task::ready!(self.poll_chunk(context)) {
            self.over = Over::Failed;
            let kind = match error {
                GuestError::Timeout { .. } => io::ErrorKind::TimedOut,
                _ => io::ErrorKind::Other,
            };
            return Poll::Ready(Err(io::Error::new(kind, error)));
        }
        let length = out.remaining().min(self.chunk.len());
        out.put_slice(&self.chunk[..length]);
        self.chunk.advance(length);
        Poll::Ready(Ok(()))
    }
}
