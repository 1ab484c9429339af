//! Answers that end when the right to them does.

use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_control::identity::{Lifeline, Over, SandboxEnd};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::body::{AnswerBody, BodyError, Broken};
use crate::crowd::InCrowd;
use crate::leash::Leashed;

/// What an answer ends with, besides its own end.
#[derive(Debug, Clone)]
pub(super) enum Tie {
    /// Nothing.
    None,
    /// The right by which it was asked for.
    Pass(Lifeline),
    /// The sandbox: everybody may ask.
    Sandbox(SandboxEnd),
}

impl Tie {
    /// Waits until the answer has to end.
    pub(super) async fn broken(self) -> Broken {
        match self {
            Self::None => std::future::pending().await,
            Self::Pass(lifeline) => because(lifeline.broken().await),
            Self::Sandbox(end) => {
                end.reached().await;
                because(Over::SandboxEnded)
            }
        }
    }
}

/// What `work` comes to, unless the right to it ends first.
pub(super) async fn while_allowed<T>(
    tie: &Tie,
    work: impl Future<Output = T>,
) -> Result<T, Broken> {
    tokio::select! {
        biased;
        broken = tie.clone().broken() => Err(broken),
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

/// A body that breaks with its tie, and counts as long as it is there.
pub(super) fn tied(body: AnswerBody, tie: Tie, in_crowd: InCrowd) -> Leashed<Counted> {
    let counted = Counted {
        body,
        _in_crowd: in_crowd,
    };
    Leashed::new(counted, tie.broken())
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
