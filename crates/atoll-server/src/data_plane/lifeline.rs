//! Answers that end when the right to them does.

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_control::identity::{Lifeline, Over};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::body::{AnswerBody, BodyError, Broken};
use crate::crowd::InCrowd;
use crate::leash::Leashed;

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
pub(super) fn tied(
    body: AnswerBody,
    lifeline: Option<Lifeline>,
    in_crowd: InCrowd,
) -> Leashed<Counted> {
    let counted = Counted {
        body,
        _in_crowd: in_crowd,
    };
    Leashed::new(counted, async move {
        match lifeline {
            Some(lifeline) => because(lifeline.broken().await),
            // Nobody's right ends it.
            None => std::future::pending().await,
        }
    })
}

/// A body that is one of a crowd.
pub(super) struct Counted {
    body: AnswerBody,
    _in_crowd: InCrowd,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
