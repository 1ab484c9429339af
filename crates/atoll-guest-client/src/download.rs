//! Bytes of a file as they come.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::Body;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf, Take};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::answer::AnswerBody;
use crate::error::GuestError;
use crate::lane::Lane;
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
    source: Source,
    length: Length,
    received: u64,
    silence: Duration,
    alarm: Pin<Box<Sleep>>,
    waiting: bool,
    over: Over,
}

/// Where the bytes come from.
#[derive(Debug)]
enum Source {
    /// Plain HTTP, and what is left of its last chunk.
    Http(AnswerBody, Bytes),
    /// Past HTTP; what follows the announced bytes is nobody's.
    Lane(Take<Lane>),
}

/// A whole file past HTTP.
pub(crate) struct Whole {
    pub(crate) lane: Lane,
    pub(crate) length: u64,
    pub(crate) silence: Duration,
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
        Ok(Self::of(Source::Http(body, Bytes::new()), length, silence))
    }

    /// A file of `length` bytes on a connection of its own.
    pub(crate) fn past_http(lane: Lane, length: u64, silence: Duration) -> Self {
        Self::of(
            Source::Lane(lane.take(length)),
            Length::Exactly(length),
            silence,
        )
    }

    /// The lane of a file of which nothing was read yet; all else as it is.
    pub(crate) fn untouched_lane(self) -> Result<Whole, Box<Self>> {
        let is_untouched = self.received == 0 && self.over == Over::No;
        match (self.source, self.length) {
            (Source::Lane(lane), Length::Exactly(length)) if is_untouched => Ok(Whole {
                lane: lane.into_inner(),
                length,
                silence: self.silence,
            }),
            (source, length) => Err(Box::new(Self {
                source,
                length,
                ..self
            })),
        }
    }

    fn of(source: Source, length: Length, silence: Duration) -> Self {
        Self {
            source,
            length,
            received: 0,
            silence,
            alarm: Box::pin(sleep_until(Instant::now())),
            waiting: false,
            over: Over::No,
        }
    }

    /// Takes bytes as they come; none at the end.
    fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), GuestError>> {
        while self.over == Over::No {
            if !self.waiting {
                // Counts while somebody waits, not while the caller is busy.
                let next = from_now(self.silence);
                self.alarm.as_mut().reset(next);
                self.waiting = true;
            }
            let polled = match &mut self.source {
                Source::Http(body, chunk) => poll_body(body, chunk, context, out, |length| {
                    self.received += length;
                    self.length.check(self.received)
                }),
                Source::Lane(lane) => poll_lane(lane, context, out)
                    .map_ok(|came| came.inspect(|length| self.received += length)),
            };
            match polled {
                Poll::Ready(came) => {
                    self.waiting = false;
                    match came? {
                        None => {
                            self.length.check_end(self.received)?;
                            self.over = Over::Whole;
                        }
                        Some(0) => {}
                        Some(_) => return Poll::Ready(Ok(())),
                    }
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

/// How many bytes came, or that the end did.
type Came = Poll<Result<Option<u64>, GuestError>>;

fn poll_body(
    body: &mut AnswerBody,
    chunk: &mut Bytes,
    context: &mut Context<'_>,
    out: &mut ReadBuf<'_>,
    mut arrived: impl FnMut(u64) -> Result<(), GuestError>,
) -> Came {
    if chunk.is_empty() {
        match std::task::ready!(Pin::new(body).poll_frame(context)) {
            Some(frame) => *chunk = frame?.into_data().unwrap_or_default(),
            None => return Poll::Ready(Ok(None)),
        }
        arrived(chunk.len() as u64)?;
    }
    let length = out.remaining().min(chunk.len());
    out.put_slice(&chunk[..length]);
    chunk.advance(length);
    Poll::Ready(Ok(Some(length as u64)))
}

fn poll_lane(lane: &mut Take<Lane>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Came {
    let before = out.filled().len();
    std::task::ready!(Pin::new(lane).poll_read(context, out))
        .map_err(|error| GuestError::Disconnected(error.to_string()))?;
    let came = out.filled().len() - before;
    Poll::Ready(Ok((came > 0).then_some(came as u64)))
}

impl Length {
    pub(crate) fn check(self, bytes: u64) -> Result<(), GuestError> {
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
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = std::task::ready!(self.poll_bytes(context, out)) {
            self.over = Over::Failed;
            let kind = match error {
                GuestError::Timeout { .. } => io::ErrorKind::TimedOut,
                _ => io::ErrorKind::Other,
            };
            return Poll::Ready(Err(io::Error::new(kind, error)));
        }
        Poll::Ready(Ok(()))
    }
}
