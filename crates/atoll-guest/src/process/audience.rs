//! Who follows a command.
//!
//! While the command runs, the slowest follower sets the pace: a queue takes
//! a few pieces and then the command waits. Once it has exited, what is left
//! in its pipes is bounded, so nobody waits for anybody any more: each
//! follower gets the rest and the end at its own pace.

use std::sync::{Arc, Mutex, PoisonError};

use atoll_protocol::status::ExitStatus;
use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Pieces of output that wait for one follower. When they are all taken the
/// command waits too.
const QUEUE: usize = 4;

/// What a command says.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// Terminal output.
    Terminal(Bytes),
}

/// Who follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Whoever started it; learns of the deadline.
    Starter,
    /// Somebody who came later.
    Visitor,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By its own doing, or by a signal.
    Own(ExitStatus),
    /// It took too long and was ended with everything it started.
    Deadline(ExitStatus),
}

/// A piece of output and its place in the queue, free again when it is taken.
type Piece = (Output, Option<OwnedSemaphorePermit>);

#[derive(Debug, Clone)]
struct Follower {
    queue: mpsc::UnboundedSender<Piece>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    followers: Vec<Follower>,
    end: Option<End>,
}

/// All followers of one command.
#[derive(Debug)]
pub(crate) struct Audience(Mutex<State>);

/// What one follower still has to see.
#[derive(Debug)]
pub(crate) struct Following {
    role: Role,
    pieces: mpsc::UnboundedReceiver<Piece>,
    audience: Arc<Audience>,
}

impl Audience {
    /// Nobody follows yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            followers: Vec::new(),
            end: None,
        })))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Follows from now on.
    pub(crate) fn join(self: &Arc<Self>, role: Role) -> Following {
        let (queue, pieces) = mpsc::unbounded_channel();
        self.with(|state| {
            if state.end.is_none() {
                state.followers.push(Follower {
                    queue,
                    room: Arc::new(Semaphore::new(QUEUE)),
                });
            }
        });
        Following {
            role,
            pieces,
            audience: Arc::clone(self),
        }
    }

    /// Hands a piece to every follower. Waits for the slow ones until the
    /// command has exited.
    pub(crate) async fn hear(&self, output: &Output, exited: &watch::Receiver<bool>) {
        let followers = self.with(|state| {
            state
                .followers
                .retain(|follower| !follower.queue.is_closed());
            state.followers.clone()
        });
        join_all(
            followers
                .iter()
                .map(|follower| follower.take(output.clone(), exited.clone())),
        )
        .await;
    }

    /// Tells everybody the end, once.
    pub(crate) fn end(&self, end: End) {
        self.with(|state| {
            state.end = Some(end);
            state.followers.clear();
        });
    }
}

impl Follower {
    async fn take(&self, output: Output, mut exited: watch::Receiver<bool>) {
        let place = tokio::select! {
            biased;
            place = Arc::clone(&self.room).acquire_owned() => place.ok(),
            _ = exited.wait_for(|exited| *exited) => None,
            // It went away and misses nothing it wants.
            () = self.queue.closed() => return,
        };
        let _ = self.queue.send((output, place));
    }
}

impl Following {
    /// The next piece of output; the end when there is none.
    pub(crate) async fn next(&mut self) -> Result<Output, Option<End>> {
        match self.pieces.recv().await {
            Some((output, _place)) => Ok(output),
            None => Err(self.audience.with(|state| state.end)),
        }
    }

    /// Whether this one learns that a deadline passed, and not how the
    /// command was ended for it.
    pub(crate) fn learns_of_deadline(&self) -> bool {
        self.role == Role::Starter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &'static str) -> Output {
        Output::Stdout(Bytes::from_static(text.as_bytes()))
    }

    async fn all(mut following: Following) -> (Vec<String>, Option<End>) {
        let mut seen = Vec::new();
        loop {
            match following.next().await {
                Ok(Output::Stdout(bytes)) => {
                    seen.push(String::from_utf8(bytes.to_vec()).unwrap());
                }
                Ok(other) => panic!("{other:?}"),
                Err(end) => return (seen, end),
            }
        }
    }

    #[tokio::test]
    async fn a_follower_that_rests_keeps_nobody_from_the_end() {
        let (audience, exited) = (Audience::new(), watch::Sender::new(false));
        let (resting, awake) = (audience.join(Role::Starter), audience.join(Role::Visitor));
        let awake = tokio::spawn(all(awake));
        let speaker = {
            let (audience, exited) = (Arc::clone(&audience), exited.subscribe());
            tokio::spawn(async move {
                for _ in 0..QUEUE + 3 {
                    audience.hear(&piece("x"), &exited).await;
                }
                audience.end(End::Own(ExitStatus::Exited(0)));
            })
        };
        // The speaker waits for the one that rests, and everybody else with it.
        tokio::task::yield_now().await;
        assert!(!speaker.is_finished());
        exited.send_replace(true);
        speaker.await.unwrap();
        let expected = (
            vec!["x".to_owned(); QUEUE + 3],
            Some(End::Own(ExitStatus::Exited(0))),
        );
        assert_eq!(awake.await.unwrap(), expected);
        assert_eq!(all(resting).await, expected);
        let late = audience.join(Role::Visitor);
        assert_eq!(all(late).await, (vec![], expected.1));
    }
}
