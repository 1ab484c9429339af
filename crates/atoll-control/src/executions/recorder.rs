//! Writes executions down, many in one commit: who waits for the result of
//! an execution does not wait for the disk. What is read from the history is
//! written first (`flush`).

use atoll_store::db::{Database, Execution, Fence};
use tokio::sync::{mpsc, oneshot};

/// Executions that wait to be written; who comes later waits.
const WAITING_MAX: usize = 1024;
/// Executions in one commit.
const BATCH_MAX: usize = 128;
/// How often a commit is tried.
const ATTEMPTS: usize = 3;

enum Message {
    Row(Box<Execution>),
    Flush(oneshot::Sender<()>),
}

/// Where executions are handed to be written.
pub(super) struct Recorder(mpsc::Sender<Message>);

impl Recorder {
    pub(super) fn start(database: Database, fence: Fence) -> Self {
        let (sender, messages) = mpsc::channel(WAITING_MAX);
        tokio::spawn(write(database, fence, messages));
        Self(sender)
    }

    /// Has an execution written as it stands.
    pub(super) async fn record(&self, execution: Execution) {
        // The task ends only with the process.
        let _ = self.0.send(Message::Row(Box::new(execution))).await;
    }

    /// Waits until everything before is written.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.send(Message::Flush(done)).await.is_ok() {
            let _ = flushed.await; // of a task that ended
        }
    }
}

async fn write(database: Database, fence: Fence, mut messages: mpsc::Receiver<Message>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while messages.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (mut rows, mut waiting) = (Vec::new(), Vec::new());
        for message in batch.drain(..) {
            match message {
                Message::Row(row) => rows.push(*row),
                Message::Flush(done) => waiting.push(done),
            }
        }
        if !rows.is_empty() {
            commit(&database, &fence, &rows).await;
        }
        for done in waiting {
            let _ = done.send(()); // who does not wait needs no answer
        }
    }
}

async fn commit(database: &Database, fence: &Fence, rows: &[Execution]) {
    for attempt in 1..=ATTEMPTS {
        match database.record_executions(fence, rows).await {
            Ok(()) => return,
            Err(error) if attempt == ATTEMPTS => {
                let count = rows.len();
                tracing::error!("{count} executions are missing from the history: {error}");
            }
            Err(error) => tracing::warn!("the history is written again: {error}"),
        }
    }
}
