//! Signals that ask a command to end.

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C and SIGTERM, and the exit status each of them means.
pub(crate) struct Interruption {
    interrupt: Signal,
    terminate: Signal,
}

impl Interruption {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    pub(crate) async fn next(&mut self) -> ExitCode {
        tokio::select! {
            _ = self.interrupt.recv() => ExitCode::from(130),
            _ = self.terminate.recv() => ExitCode::from(143),
        }
    }
}
