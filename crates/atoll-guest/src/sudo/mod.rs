//! `sudo` where the kernel ignores the set-user-id bit, as gVisor's does.
//!
//! ```text
//! sudo (this binary by another name, the caller's rights)
//!    │ socket: ◀ one byte; three streams, one line of JSON, then bytes, each a signal
//!    ▼ ◀ one line when the command runs, one when it has ended
//! guest (PID 1) ──▶ reaper ──▶ the command, as root
//! ```
//!
//! The kernel says who sends the streams. `user` (uid 1000) and root may, as in every
//! template of ours; nobody else. When the caller ends, so does its command
//! with all that it started: a timeout finds it though it is not below. Only
//! what a command has left behind at its own end is not found any more.
//!
//! `options` reads the command line, `client` is the caller's side, `terminal`
//! its way to a terminal of the command's own, `service` the guest's side.

pub(crate) mod client;
mod options;
pub(crate) mod service;
mod terminal;

use serde::{Deserialize, Serialize};

use crate::process::reaper::Report;

/// Where the guest listens.
const SOCKET: &str = "/run/.atoll-sudo";

/// What the guest says first: from here on the kernel tells it who speaks.
const READY: u8 = b'r';

/// Longest request; arguments and environment of one program are not longer.
const REQUEST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What the caller asks for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    /// Who it wants to be: a name, or `#` and a number.
    user: String,
    /// Words of the command; none for the shell of the user.
    words: Vec<String>,
    /// How the words are meant.
    mode: Mode,
    /// Variables that the command gets beside those of `sudo`.
    env: Vec<(String, String)>,
    /// Whether `HOME` is among them already.
    keeps_home: bool,
    /// The caller's directory.
    cwd: String,
    /// Whether the first stream is a terminal for the command alone.
    terminal: bool,
}

/// How a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// As it is.
    Program,
    /// By a shell (`-s`).
    Shell,
    /// By a login shell, in the home of the user (`-i`).
    Login,
}

/// What the guest answers, one line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// How the command starts and ends.
    Command(Report),
    /// Why it does not start.
    Refused(String),
}
