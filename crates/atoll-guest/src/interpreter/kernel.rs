//! A kernel that runs: its process, the way to speak to it, and the ear that
//! hears it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::Serialize;
use tokio::task::JoinHandle;

use super::clock;
use super::ear::Ear;
use super::kernelspec::InterruptMode;
use super::message::{ExecuteRequest, Message, Signer};
use super::place::KernelDirectory;
use super::process::KernelProcess;
use super::zmtp;
use crate::process::stream::Stream;

/// A kernel.
pub(super) struct Kernel {
    pub(super) process: Arc<KernelProcess>,
    pub(super) ear: Ear,
    /// Variables that its process has.
    pub(super) env: BTreeMap<String, String>,
    /// Whether the sandbox's variables were told to its programs.
    pub(super) is_told: bool,
    /// How often the sandbox's memory had been restored when it was seeded last.
    pub(super) seeded_at: u64,
    pub(super) speech: Speech,
    /// Those who hear it go with it.
    _listeners: Listeners,
    /// Goes with it.
    _directory: Option<KernelDirectory>,
    requests: u64,
}

/// Tasks that end with whoever holds them: a kernel whose sockets somebody
/// else keeps open would otherwise be heard for ever.
#[derive(Debug, Default)]
pub(super) struct Listeners(Vec<JoinHandle<()>>);

impl Listeners {
    pub(super) fn add(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }

    /// Holds those of another as well.
    pub(super) fn join(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// The way to speak to a kernel.
pub(super) enum Speech {
    Jupyter {
        shell: zmtp::Sender,
        control: zmtp::Sender,
        signer: Signer,
        interrupt: InterruptMode,
    },
    /// The runner for a Python without kernels reads lines.
    Plain(Stream),
}

impl Kernel {
    pub(super) fn new(
        process: Arc<KernelProcess>,
        ear: Ear,
        env: BTreeMap<String, String>,
        speech: Speech,
        listeners: Listeners,
        directory: Option<KernelDirectory>,
    ) -> Self {
        Self {
            process,
            ear,
            env,
            is_told: false,
            seeded_at: 0,
            speech,
            _listeners: listeners,
            _directory: directory,
            requests: 0,
        }
    }

    /// A name for the next request.
    pub(super) fn next_request(&mut self) -> String {
        self.requests += 1;
        format!("atoll-{}", self.requests)
    }

    /// Asks for code to be run.
    pub(super) async fn execute(
        &mut self,
        id: &str,
        request: &ExecuteRequest<'_>,
    ) -> io::Result<()> {
        match &mut self.speech {
            Speech::Jupyter { shell, signer, .. } => {
                send(shell, signer, id, "execute_request", request).await
            }
            Speech::Plain(stdin) => {
                #[derive(Serialize)]
                struct Line<'a> {
                    id: &'a str,
                    code: &'a str,
                    silent: bool,
                }
                let mut line = serde_json::to_vec(&Line {
                    id,
                    code: request.code,
                    silent: request.silent,
                })?;
                line.push(b'\n');
                stdin.write_all(&line).await
            }
        }
    }

    /// Whether a signal breaks off what it does.
    pub(super) fn is_interrupted_by_signal(&self) -> bool {
        match &self.speech {
            Speech::Jupyter { interrupt, .. } => *interrupt == InterruptMode::Signal,
            Speech::Plain(_) => true,
        }
    }

    /// Breaks off what it does.
    pub(super) async fn interrupt(&mut self) {
        if let Speech::Jupyter {
            control,
            signer,
            interrupt: InterruptMode::Message,
            ..
        } = &mut self.speech
        {
            #[derive(Serialize)]
            struct Empty {}
            // One that cannot be told is ended in a moment anyway.
            let _ = send(control, signer, "interrupt", "interrupt_request", &Empty {}).await;
        } else {
            self.process.interrupt();
        }
    }
}

/// Sends one request to a socket of a kernel.
pub(super) async fn send(
    to: &mut zmtp::Sender,
    signer: &Signer,
    id: &str,
    kind: &str,
    content: &impl Serialize,
) -> io::Result<()> {
    let frames = signer.request(id, kind, content, &clock::now())?;
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    to.send(&frames).await
}

/// Hears one socket of a kernel until it is gone.
pub(super) async fn hear(mut receiver: zmtp::Receiver, ear: Ear) {
    while let Ok(frames) = receiver.receive().await {
        // What is no message is nothing.
        if let Some(message) = Message::parse(frames) {
            ear.hear(message).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_hears_a_kernel_goes_with_it() {
        let (mut first, mut second) = (Listeners::default(), Listeners::default());
        let (held, gone) = oneshot::channel::<()>();
        second.add(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        first.join(second);
        drop(first);
        // The task was given up, and what it held with it.
        gone.await.unwrap_err();
    }
}
