//! What goes to a command that runs: input, signals, the size of its terminal.

use atoll_protocol::envd::process::{
    CloseStdinRequest, PTY, ProcessInput as InputMessage, ProcessSelector, SendInputRequest,
    SendSignalRequest, Signal as SignalMessage, UpdateRequest,
};
use atoll_protocol::envd::process_oneof::{Input, Selector};
use atoll_protocol::{SIGNAL_SCOPE_HEADER, SIGNAL_SCOPE_TREE};

use crate::client::{GuestClient, Patience};
use crate::error::GuestError;
use crate::process::PtySize;

/// Most input in one request, in bytes.
const INPUT_BYTES_MAX: usize = 1024 * 1024;

/// Signals that a command can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM`.
    Terminate,
    /// `SIGKILL`.
    Kill,
}

/// Where a command's input goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Stdin,
    Terminal,
}

/// A handle for the input of a command. Calls on one handle that must keep
/// their order must be awaited one after the other.
#[derive(Debug, Clone)]
pub struct ProcessInput {
    client: GuestClient,
    pid: u32,
    target: Target,
}

impl ProcessInput {
    pub(crate) fn new(client: GuestClient, pid: u32, target: Target) -> Self {
        Self {
            client,
            pid,
            target,
        }
    }

    /// Sends input and waits until the command's pipe or terminal took all of
    /// it; that may take until the command ends, as with any pipe.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when the command has ended.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), GuestError> {
        for piece in bytes.chunks(INPUT_BYTES_MAX) {
            let input = match self.target {
                Target::Stdin => Input::Stdin(piece.to_vec()),
                Target::Terminal => Input::Pty(piece.to_vec()),
            };
            let message = SendInputRequest {
                process: selector(self.pid).into(),
                input: InputMessage {
                    input: Some(input),
                    ..Default::default()
                }
                .into(),
                ..Default::default()
            };
            self.client
                .call(
                    "/process.Process/SendInput",
                    &message,
                    &[],
                    Patience::WithTheCommand,
                )
                .await?;
        }
        Ok(())
    }

    /// Ends the input.
    ///
    /// # Errors
    /// `Rpc` when there is none to end, as with a terminal.
    pub async fn close(&self) -> Result<(), GuestError> {
        let message = CloseStdinRequest {
            process: selector(self.pid).into(),
            ..Default::default()
        };
        self.client
            .call(
                "/process.Process/CloseStdin",
                &message,
                &[],
                Patience::WithTheCommand,
            )
            .await
    }

    /// Sends a signal to the one process.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when it has ended.
    pub async fn signal(&self, signal: Signal) -> Result<(), GuestError> {
        self.send_signal(signal, &[]).await
    }

    /// Ends the command with everything it started.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when it has ended.
    pub async fn kill_tree(&self) -> Result<(), GuestError> {
        self.send_signal(
            Signal::Kill,
            &[(SIGNAL_SCOPE_HEADER, SIGNAL_SCOPE_TREE.to_owned())],
        )
        .await
    }

    async fn send_signal(
        &self,
        signal: Signal,
        headers: &[(&'static str, String)],
    ) -> Result<(), GuestError> {
        let signal = match signal {
            Signal::Terminate => SignalMessage::SIGNAL_SIGTERM,
            Signal::Kill => SignalMessage::SIGNAL_SIGKILL,
        };
        let message = SendSignalRequest {
            process: selector(self.pid).into(),
            signal: signal.into(),
            ..Default::default()
        };
        self.client
            .call(
                "/process.Process/SendSignal",
                &message,
                headers,
                Patience::Bounded,
            )
            .await
    }

    /// Changes the size of the terminal.
    ///
    /// # Errors
    /// `Rpc` when there is no terminal or the command has ended.
    pub async fn resize(&self, size: PtySize) -> Result<(), GuestError> {
        let message = UpdateRequest {
            process: selector(self.pid).into(),
            pty: PTY::from(size).into(),
            ..Default::default()
        };
        self.client
            .call("/process.Process/Update", &message, &[], Patience::Bounded)
            .await
    }
}

pub(crate) fn selector(pid: u32) -> ProcessSelector {
    ProcessSelector {
        selector: Some(Selector::Pid(pid)),
        ..Default::default()
    }
}
