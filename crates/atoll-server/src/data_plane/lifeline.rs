//! Answers that end when the right to them does.

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_control::identity::{Lifeline, Over};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::body::{AnswerBody, BodyError, Broken};
use crate::crowd::InCrowd;

/// What `work` comes to, unless the right to it ends first.
pub(super) async fn while_allowed<T>(
    lifeline: Option<&Lifeline>,
    work: impl Future<Output = T>,
) -> Result<T, Broken> {
    let Some(lifeline) = lifeline else {
        return Ok(work.await);
    };
    tokio::select! {
        biased;
        over = lifeline.clone().broken() => Err(because(over)),
        done = work => Ok(done),
    }
}

fn because(over: Over) -> Broken {
    Broken(match over {
        Over::KeyRevoked => "the key was revoked",
        Over::KeyExpired => "the key has expired",
        Over::SandboxEnded => "the sandbox has ended",
    })
}

/// A body that breaks with a lifeline, and counts as long as it is there.
pub(super) struct Tied {
    body: AnswerBody,
    /// Absent when nobody's right ends it.
    broken: Option<Pin<Box<dyn Future<Output = Over> + Send>>>,
    _in_crowd: InCrowd,
}

impl Tied {
    pub(super) fn new(body: AnswerBody, lifeline: Option<Lifeline>, in_crowd: InCrowd) -> Self {
        Self {
            body,
            broken: lifeline.map(|lifeline| Box::pin(lifeline.broken()) as Pin<Box<_>>),
            _in_crowd: in_crowd,
        }
    }
}

impl Body for Tied {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(broken) = &mut self.broken
            && let Poll::Ready(over) = broken.as_mut().poll(context)
        {
            return Poll::Ready(Some(Err(because(over).into())));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
