//! Bodies that let go of what they hold when it is over, also while nobody
//! reads them.
//!
//! A client that reads nothing is not told anything either: HTTP asks a body
//! for more only when there is room for it. So the end of a sandbox or of a
//! right is waited for beside the body, and what it holds (a connection into
//! the sandbox, a place in the crowd) is dropped then. The client sees its
//! stream break when it reads on.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::body::{BodyError, Broken};

/// How long a client may ask for nothing more of an answer.
const UNREAD_BOUND: Duration = Duration::from_secs(660);

/// A body that is let go of at an end.
pub(crate) struct Leashed<B> {
    held: Arc<Mutex<Held<B>>>,
    watcher: Option<JoinHandle<()>>,
}

struct Held<B> {
    body: Result<B, Broken>,
    /// Who waits for more of it.
    reader: Option<Waker>,
    /// When somebody last asked for more.
    asked: Instant,
}

impl<B: Body + Send + 'static> Leashed<B> {
    /// Holds `body` until `end` says why it is over.
    pub(crate) fn new(body: B, end: impl Future<Output = Broken> + Send + 'static) -> Self {
        let is_over = body.is_end_stream();
        let held = Arc::new(Mutex::new(Held {
            body: Ok(body),
            reader: None,
            asked: Instant::now(),
        }));
        // Nothing is waited for where nothing comes.
        let watcher = (!is_over).then(|| {
            let held = Arc::clone(&held);
            tokio::spawn(async move {
                let why = tokio::select! {
                    why = end => why,
                    why = unread(&held) => why,
                };
                let mut held = lock(&held);
                if held.body.as_ref().is_ok_and(Body::is_end_stream) {
                    return; // all of it came before
                }
                held.body = Err(why);
                if let Some(reader) = held.reader.take() {
                    reader.wake();
                }
            })
        });
        Self { held, watcher }
    }
}

/// Waits until nobody has asked for more for too long.
async fn unread<B>(held: &Mutex<Held<B>>) -> Broken {
    loop {
        let end = {
            let held = lock(held);
            // Whoever waits for a silent service reads.
            let since = if held.reader.is_some() {
                Instant::now()
            } else {
                held.asked
            };
            since + UNREAD_BOUND
        };
        if end <= Instant::now() {
            return Broken("the client does not read");
        }
        sleep_until(end).await;
    }
}

fn lock<B>(held: &Mutex<Held<B>>) -> MutexGuard<'_, Held<B>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> Drop for Leashed<B> {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

impl<B> Body for Leashed<B>
where
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut held = lock(&self.held);
        held.asked = Instant::now();
        held.reader = None;
        let polled = match &mut held.body {
            Ok(body) => Pin::new(body).poll_frame(context),
            Err(why) => return Poll::Ready(Some(Err((*why).into()))),
        };
        if polled.is_pending() {
            held.reader = Some(context.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let held = lock(&self.held);
        held.body.as_ref().is_ok_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let held = lock(&self.held);
        held.body
            .as_ref()
            .map_or_else(|_| SizeHint::default(), Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::oneshot;

    use super::*;

    /// An endless body that says when it is dropped.
    struct Endless {
        _dropped: oneshot::Sender<()>,
        silent: bool,
    }

    impl Body for Endless {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            if self.silent {
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"more")))))
        }
    }

    fn endless(silent: bool) -> (Endless, oneshot::Receiver<()>) {
        let (dropped, is_dropped) = oneshot::channel();
        let body = Endless {
            _dropped: dropped,
            silent,
        };
        (body, is_dropped)
    }

    async fn ended(end: oneshot::Receiver<()>) -> Broken {
        let _ = end.await;
        Broken("it is over")
    }

    #[tokio::test]
    async fn what_nobody_reads_is_let_go_of_at_the_end() {
        let (body, is_dropped) = endless(false);
        let (end, at_end) = oneshot::channel();
        let mut leashed = Leashed::new(body, ended(at_end));
        assert!(leashed.frame().await.unwrap().is_ok());
        end.send(()).unwrap();
        // Not polled meanwhile: only the watcher can drop it.
        assert!(is_dropped.await.is_err());
        let error = leashed.frame().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("it is over"), "{error}");
        assert!(!leashed.is_end_stream());
    }

    #[tokio::test]
    async fn who_waits_for_more_is_told_of_the_end() {
        let (body, _is_dropped) = endless(true);
        let (end, at_end) = oneshot::channel();
        let mut leashed = Leashed::new(body, ended(at_end));
        let waiting = tokio::spawn(async move { leashed.frame().await.unwrap().is_err() });
        tokio::task::yield_now().await;
        end.send(()).unwrap();
        assert!(waiting.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_reads_is_not_waited_for_but_a_silent_service_is() {
        let (body, is_dropped) = endless(false);
        let (_end, at_end) = oneshot::channel();
        let _unread = Leashed::new(body, ended(at_end));
        let (body, mut is_kept) = endless(true);
        let (_end, at_end) = oneshot::channel();
        let mut read = Leashed::new(body, ended(at_end));
        tokio::spawn(async move { read.frame().await });
        assert!(is_dropped.await.is_err());
        tokio::time::sleep(UNREAD_BOUND * 3).await;
        assert_eq!(is_kept.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }

    #[tokio::test]
    async fn the_watcher_ends_with_the_body() {
        let (body, is_dropped) = endless(false);
        let (mut end, at_end) = oneshot::channel();
        drop(Leashed::new(body, ended(at_end)));
        end.closed().await;
        assert!(is_dropped.await.is_err());
    }
}
