//! A process that goes on between calls: a task follows it and keeps the end of
//! its output until somebody asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_guest_client::{ExitStatus, Process, ProcessEvent, ProcessInput};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Bytes of output that wait for a reader; of more, the oldest are lost.
pub(crate) const WAITING_BYTES_MAX: usize = 256 * 1024;

/// When output pauses for so long, it is handed out.
const PAUSE: Duration = Duration::from_millis(50);

/// How a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    Running,
    Ended(ExitStatus),
    /// Nobody can say: the connection broke.
    Lost(String),
}

#[derive(Debug)]
struct Heard {
    waiting: VecDeque<u8>,
    lost_bytes: u64,
    condition: Condition,
}

#[derive(Debug)]
struct Shared {
    heard: Mutex<Heard>,
    news: Notify,
}

impl Shared {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that somebody follows. Dropped, it goes on, and nobody follows it.
#[derive(Debug)]
pub(crate) struct Watched {
    sandbox: String,
    command: String,
    input: ProcessInput,
    shared: Arc<Shared>,
    follower: JoinHandle<()>,
}

/// What came of a process since the last time.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) output: Vec<u8>,
    /// Bytes that came and were not read in time.
    pub(crate) lost_bytes: u64,
    pub(crate) condition: Condition,
}

impl Watched {
    pub(crate) fn follow(sandbox: &str, command: &str, process: Process) -> Self {
        let input = process.input();
        let shared = Arc::new(Shared {
            heard: Mutex::new(Heard {
                waiting: VecDeque::new(),
                lost_bytes: 0,
                condition: Condition::Running,
            }),
            news: Notify::new(),
        });
        Self {
            sandbox: sandbox.to_owned(),
            command: command.to_owned(),
            input,
            follower: tokio::spawn(listen(process, Arc::clone(&shared))),
            shared,
        }
    }

    pub(crate) fn sandbox(&self) -> &str {
        &self.sandbox
    }

    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    pub(crate) fn input(&self) -> &ProcessInput {
        &self.input
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.heard().condition != Condition::Running
    }

    /// What came since the last time, at most `bytes_max`; waits for it for at
    /// most `patience`.
    /// Output often comes in pieces: once there is some, it is waited until it pauses.
    pub(crate) async fn read(&self, bytes_max: usize, patience: Duration) -> News {
        let begun = Instant::now();
        let mut end = begun + patience;
        loop {
            let noticed = self.shared.news.notified();
            {
                let mut heard = self.shared.heard();
                if heard.condition != Condition::Running || heard.waiting.len() >= bytes_max {
                    return take(&mut heard, bytes_max);
                }
                if !heard.waiting.is_empty() {
                    end = end.min(Instant::now() + PAUSE).min(begun + patience);
                }
            }
            if timeout_at(end, noticed).await.is_err() {
                return take(&mut self.shared.heard(), bytes_max);
            }
            if begun.elapsed() < patience {
                end = begun + patience;
            }
        }
    }

    /// Waits until it has ended, for at most `patience`.
    pub(crate) async fn ended(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            let noticed = self.shared.news.notified();
            if self.has_ended() {
                return true;
            }
            if timeout_at(end, noticed).await.is_err() {
                return self.has_ended();
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

fn take(heard: &mut Heard, bytes_max: usize) -> News {
    let count = heard.waiting.len().min(bytes_max);
    News {
        output: heard.waiting.drain(..count).collect(),
        lost_bytes: std::mem::take(&mut heard.lost_bytes),
        condition: heard.condition.clone(),
    }
}

async fn listen(mut process: Process, shared: Arc<Shared>) {
    loop {
        let event = process.next().await;
        let mut heard = shared.heard();
        match event {
            Ok(Some(
                ProcessEvent::Stdout(bytes)
                | ProcessEvent::Stderr(bytes)
                | ProcessEvent::Pty(bytes),
            )) => {
                heard.waiting.extend(&bytes);
                let surplus = heard.waiting.len().saturating_sub(WAITING_BYTES_MAX);
                heard.waiting.drain(..surplus);
                heard.lost_bytes += surplus as u64;
            }
            Ok(Some(ProcessEvent::End(status))) => heard.condition = Condition::Ended(status),
            Ok(None) => {
                if heard.condition == Condition::Running {
                    heard.condition = Condition::Lost("it ended without a status".to_owned());
                }
            }
            Err(error) => heard.condition = Condition::Lost(error.to_string()),
        }
        let is_over = heard.condition != Condition::Running;
        drop(heard);
        shared.news.notify_waiters();
        if is_over {
            return;
        }
    }
}
