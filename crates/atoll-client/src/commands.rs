//! Commands and terminals in a sandbox.

use std::borrow::Cow;

use atoll_guest_client::{Command, ExitStatus, GuestClient, GuestError, Process, ProcessEvent};

/// Most bytes of output that [`Commands::run`] keeps, of both kinds together.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long a command of [`Commands::run`] may take, as in E2B's clients.
const RUN_BOUND: std::time::Duration = std::time::Duration::from_secs(60);

/// What a command wrote and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text; what is no UTF-8 is replaced.
    #[must_use]
    pub fn stdout_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Standard error as text; what is no UTF-8 is replaced.
    #[must_use]
    pub fn stderr_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

/// Why a command has no output to show.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started or followed.
    #[error(transparent)]
    Sandbox(#[from] GuestError),
    /// It wrote more than is kept; it goes on.
    #[error("the command wrote more than {} MiB; follow it with `start` instead", OUTPUT_BYTES_MAX / 1024 / 1024)]
    TooMuchOutput,
}

impl From<RunError> for crate::ClientError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Sandbox(error) => Self::Sandbox(error),
            RunError::TooMuchOutput => Self::Protocol(error.to_string()),
        }
    }
}

/// Commands and terminals of one sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Commands<'a> {
    guest: &'a GuestClient,
}

impl<'a> Commands<'a> {
    pub(crate) fn new(guest: &'a GuestClient) -> Self {
        Self { guest }
    }

    /// Runs a line in a login shell to its end, for at most a minute.
    ///
    /// # Errors
    /// When it cannot be run, takes too long or writes too much. One that
    /// fails by itself is an [`Output`].
    pub async fn run(&self, line: &str) -> Result<Output, RunError> {
        let command = Command {
            timeout: Some(RUN_BOUND),
            ..shell(line)
        };
        let mut process = self.start(&command).await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let kept: usize = stdout.len() + stderr.len();
            match process.next().await? {
                Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes)) => {
                    stdout.extend(bytes);
                }
                Some(ProcessEvent::Stderr(bytes)) => stderr.extend(bytes),
                Some(ProcessEvent::End(status)) => {
                    return Ok(Output {
                        status,
                        stdout,
                        stderr,
                    });
                }
                None => {
                    let what = "the command ended without a status".to_owned();
                    return Err(GuestError::Protocol(what).into());
                }
            }
            if kept > OUTPUT_BYTES_MAX {
                return Err(RunError::TooMuchOutput);
            }
        }
    }

    /// Starts a command, on a terminal if it asks for one, and follows it.
    /// It goes on when nobody follows it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn start(&self, command: &Command) -> Result<Process, GuestError> {
        self.guest.start(command).await
    }

    /// Follows a command that runs.
    ///
    /// # Errors
    /// `Rpc { code: NotFound }` when there is none.
    pub async fn follow(&self, pid: u32) -> Result<Process, GuestError> {
        self.guest.follow(pid).await
    }
}

/// A line in a login shell, as E2B's clients run it.
fn shell(line: &str) -> Command {
    Command {
        cmd: "/bin/bash".to_owned(),
        args: vec!["-l".to_owned(), "-c".to_owned(), line.to_owned()],
        ..Command::default()
    }
}
