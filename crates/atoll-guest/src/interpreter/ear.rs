//! Who listens to a kernel right now. What a kernel says while nobody does,
//! or about something else, is read and dropped at once: a thread that prints
//! in the background must not come to a halt because no code runs.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use super::message::Message;

/// Messages that wait to be told on. Small: each may be large.
const WAITING_MAX: usize = 2;

/// The one request whose answers are wanted.
#[derive(Debug)]
struct Wanted {
    request: String,
    listener: mpsc::Sender<Message>,
}

/// Shared by those who read a kernel's sockets and the one who listens.
#[derive(Debug, Clone)]
pub(super) struct Ear {
    wanted: Arc<Mutex<Option<Wanted>>>,
    lost: Arc<watch::Sender<bool>>,
}

impl Ear {
    pub(super) fn new() -> Self {
        Self {
            wanted: Arc::default(),
            lost: Arc::new(watch::Sender::new(false)),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Option<Wanted>) -> T) -> T {
        work(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything that belongs to `request` from now on. Whoever listened
    /// before hears nothing more; dropped, nobody listens.
    pub(super) fn listen(&self, request: &str) -> mpsc::Receiver<Message> {
        let (listener, heard) = mpsc::channel(WAITING_MAX);
        self.with(|wanted| {
            *wanted = Some(Wanted {
                request: request.to_owned(),
                listener,
            });
        });
        heard
    }

    /// Passes a message on to whoever wants it, and waits while it is busy.
    pub(super) async fn hear(&self, message: Message) {
        let listener = self.with(|wanted| {
            wanted
                .as_ref()
                .filter(|wanted| wanted.request == message.parent)
                .map(|wanted| wanted.listener.clone())
        });
        if let Some(listener) = listener {
            // One that went away meanwhile wants nothing.
            let _ = listener.send(message).await;
        }
    }

    /// Nothing more will be published.
    pub(super) fn lose(&self) {
        self.lost.send_replace(true);
    }

    /// Waits until nothing more is published.
    pub(super) async fn lost(&self) {
        // The sender lives as long as `self`.
        let _ = self.lost.subscribe().wait_for(|lost| *lost).await;
    }
}
