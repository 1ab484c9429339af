//! Whole files in and out.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use http::Method;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::io::ReaderStream;

use crate::client::{GuestClient, empty};
use crate::connection::Driver;
use crate::error::GuestError;

/// Bytes of an upload in memory at once.
const CHUNK_BYTES: usize = 64 * 1024;

impl GuestClient {
    /// Writes a file as the user, with the directories above it.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when the guest refuses it, [`GuestError::Source`]
    /// when `body` fails; the file may then be there in part.
    pub async fn write_file(
        &self,
        path: &str,
        user: Option<&str>,
        body: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<(), GuestError> {
        let progress = Arc::new(Mutex::new(Progress::Guest(Instant::now())));
        let source = Source {
            bytes: ReaderStream::with_capacity(body, CHUNK_BYTES),
            progress: Arc::clone(&progress),
        };
        let body = StreamBody::new(source.map(|bytes| bytes.map(Frame::data))).boxed_unsync();
        let request = self.request(
            Method::POST,
            &target(path),
            user,
            "application/octet-stream",
            body,
        )?;

        let mut sent = std::pin::pin!(self.connect().await?.send(request));
        let answer = loop {
            let check = read(&progress).deadline(self.silence());
            tokio::select! {
                biased;
                answer = &mut sent => break answer,
                () = sleep_until(check) => {
                    if read(&progress).deadline(self.silence()) <= Instant::now() {
                        return Err(GuestError::Timeout { what: "take the upload", bound: self.silence() });
                    }
                }
            }
        };
        if let Progress::Failed(error) =
            &mut *progress.lock().unwrap_or_else(PoisonError::into_inner)
        {
            return Err(GuestError::Source(std::mem::replace(
                error,
                io::ErrorKind::Other.into(),
            )));
        }
        answer?.success().await?.whole_body().await?;
        Ok(())
    }

    /// Opens a file as the user. Reading it to its end proves that it is
    /// whole: a connection that breaks is an error, never an early end.
    ///
    /// # Errors
    /// [`GuestError::Refused`] when the guest refuses it.
    pub async fn read_file(
        &self,
        path: &str,
        user: Option<&str>,
    ) -> Result<FileReader, GuestError> {
        let request = self.request(
            Method::GET,
            &target(path),
            user,
            "application/octet-stream",
            empty(),
        )?;
        let answer = self.ask(request).await?.success().await?;
        let (body, driver) = answer.into_body();
        let silence = self.silence();
        Ok(FileReader {
            body,
            chunk: Bytes::new(),
            silence,
            alarm: Box::pin(sleep_until(Instant::now())),
            waiting: false,
            _driver: driver,
        })
    }
}

fn target(path: &str) -> String {
    let mut target = "/files?path=".to_owned();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'/' => {
                target.push(char::from(byte));
            }
            other => target.push_str(&format!("%{other:02X}")),
        }
    }
    target
}

/// Whose turn it is in an upload.
#[derive(Debug)]
enum Progress {
    /// The guest's, since then.
    Guest(Instant),
    /// The caller's, who has no bytes ready.
    Caller,
    /// Nobody's: the caller's bytes failed.
    Failed(io::Error),
}

impl Progress {
    fn deadline(&self, silence: Duration) -> Instant {
        match self {
            Self::Guest(since) => *since + silence,
            Self::Caller | Self::Failed(_) => Instant::now() + silence,
        }
    }
}

fn read(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The caller's bytes on their way to the guest.
struct Source<R> {
    bytes: ReaderStream<R>,
    progress: Arc<Mutex<Progress>>,
}

impl<R: AsyncRead + Unpin> Stream for Source<R> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.bytes.poll_next_unpin(context);
        let (progress, polled) = match polled {
            Poll::Pending => (Progress::Caller, Poll::Pending),
            Poll::Ready(Some(Err(error))) => {
                let kind = error.kind();
                (Progress::Failed(error), Poll::Ready(Some(Err(kind.into()))))
            }
            Poll::Ready(other) => (Progress::Guest(Instant::now()), Poll::Ready(other)),
        };
        *read(&self.progress) = progress;
        polled
    }
}

/// Bytes of a file as they come.
#[derive(Debug)]
pub struct FileReader {
    body: Incoming,
    chunk: Bytes,
    silence: Duration,
    alarm: Pin<Box<Sleep>>,
    waiting: bool,
    _driver: Driver,
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.chunk.is_empty() {
            if !self.waiting {
                // Counts while somebody waits, not while the caller is busy.
                let next = Instant::now() + self.silence;
                self.alarm.as_mut().reset(next);
                self.waiting = true;
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.waiting = false;
                    self.chunk = frame.into_data().unwrap_or_default();
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(io::Error::other(GuestError::from(error))));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    std::task::ready!(self.alarm.as_mut().poll(context));
                    let late = GuestError::Timeout {
                        what: "send more of the file",
                        bound: self.silence,
                    };
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, late)));
                }
            }
        }
        let length = out.remaining().min(self.chunk.len());
        out.put_slice(&self.chunk[..length]);
        self.chunk.advance(length);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_fits_into_a_query() {
        assert_eq!(
            target("/a b/ü&x=1+2%"),
            "/files?path=/a%20b/%C3%BC%26x%3D1%2B2%25"
        );
    }
}
