//! What monitor and client say to each other: one JSON object a line.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::EngineConfig;
use crate::host::process::ProcessIdentity;
use crate::runtime::Stats;
use crate::{Memory, NetworkPolicy, Outcome, SandboxSpec, Tier};

/// Longest line either side takes.
const LINE_LIMIT: u64 = 1024 * 1024;

/// First line on the monitor's standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MonitorRequest {
    pub(crate) config: EngineConfig,
    pub(crate) tier: Tier,
    pub(crate) spec: SandboxSpec,
}

/// The only line on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    Ready(Ready),
    Failed(Failure),
}

/// How to reach a sandbox that runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// The process with which the sandbox ends. Its network namespace is where
    /// [`Self::entrance`] can be reached.
    pub(crate) init: ProcessIdentity,
    pub(crate) control: PathBuf,
    pub(crate) entrance: Entrance,
}

/// Where the services of a sandbox are found.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entrance {
    /// On the loopback interface of the namespace, each at its own port.
    Loopback,
    /// At this address the guest, and everything else through its passage.
    Guest(Ipv4Addr),
    /// Nowhere: it has no processes until it is woken up. The process with which it
    /// ends is its monitor until then.
    None,
}

/// Why there is no sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(what: &str, error: &dyn std::fmt::Display) -> Self {
        Self {
            what: format!("{what}: {error}"),
            hint: None,
        }
    }

    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }
}

/// What can be asked on the control socket, one question a connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    Stats,
    /// What [`Question::Stats`] tells of an execution, and nothing that is slow to find out.
    Counters,
    Freeze,
    Thaw,
    /// Ends every process and keeps the disk.
    Suspend,
    /// Ends every process and keeps their memory on disk.
    Checkpoint,
    /// Writes its memory into a new directory; it runs on.
    WriteMemory(PathBuf),
    /// Lets a suspended sandbox run on; it stays as it is when that fails.
    Wake,
    /// It runs on as it should: what is kept on disk of its memory is not needed any more.
    Settle,
    SetNetwork(NetworkPolicy),
    /// Ends it this much later than now, whatever was said before.
    EndAfter(Duration),
    /// How to reach it, for who did not start it.
    Introduce,
    Halt,
    /// Stops every process where it stands, until the client says [`Question::Release`] on the
    /// same connection or closes it.
    HoldStill,
    Release,
    /// Answered when the sandbox has ended.
    Wait,
    Destroy,
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    Stats(Stats),
    Ready(Ready),
    Memory(Memory),
    /// Directory with the changes over the layers.
    Halted(PathBuf),
    /// The same while every process holds still, and the layers, the top one first.
    Still {
        changes: PathBuf,
        layers: Vec<PathBuf>,
    },
    Ended(Outcome),
    Failed(String),
    /// What was kept of it is not what was written.
    Damaged(String),
}

/// Sends one line.
pub(crate) fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Takes one line; `None` at the end of the stream.
pub(crate) fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
    bound: Option<Duration>,
) -> io::Result<Option<T>> {
    stream.set_read_timeout(bound)?;
    let mut line = String::new();
    BufReader::new(stream)
        .take(LINE_LIMIT)
        .read_line(&mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&line)
        .map(Some)
        .map_err(io::Error::other)
}
