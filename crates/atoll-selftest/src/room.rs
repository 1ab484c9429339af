//! The control room: the host without the walls.
//!
//! A tree that the host itself made (see [`crate::Ground::room`]), with a tmpfs
//! above, entered by `chroot` as root of the host: no seccomp, no limits, all
//! capabilities, the host's `/proc`, `/sys`, `/dev` and namespaces. All its
//! mounts are in a mount namespace of its own, so nothing of it is seen on the
//! host and all of it ends with its processes.
//!
//! **Invariant**: nothing that a template's author or a sandbox wrote is ever
//! run here, or says what a program here aims at.

mod furnish;
mod inside;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

pub(crate) use inside::enter;

use crate::case::Namespace;
use crate::part::{PART_ARGUMENT, Part};
use crate::stage::{Ended, OUTPUT_LIMIT, Performance};

/// Longer than any attack takes.
const ROOM_BOUND: Duration = Duration::from_secs(60);
/// A room has nothing to do at its end but to kill.
const CLOSE_BOUND: Duration = Duration::from_secs(10);

/// Which numbers processes have in a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pids {
    /// Those of a pid namespace of its own; `/proc` still shows the host's.
    Own,
    /// The host's, to lay hands on processes of the host.
    Host,
}

/// What to do in a room.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Layers, the top one first.
    pub(crate) layers: Vec<PathBuf>,
    /// Where to mount.
    pub(crate) room: PathBuf,
    /// Directory of the host that can be reached under its own name.
    pub(crate) canaries: PathBuf,
    /// Namespaces that are not the host's.
    pub(crate) namespaces: Vec<Namespace>,
    /// Which numbers its processes have.
    pub(crate) pids: Pids,
    /// Whether the root is entered by `pivot_root`, as sandboxes do, and not by `chroot`.
    pub(crate) pivoted: bool,
    /// Whether descriptor [`LEAKED`] is a directory of the host.
    pub(crate) leak: bool,
    /// Without `/proc`, `/sys` and `/dev` mounted, for layers that put something else there.
    pub(crate) bare: bool,
    /// Where the program starts.
    pub(crate) directory: String,
    /// The program for Python.
    pub(crate) program: String,
}

/// Number of the descriptor that is left open on purpose.
pub(crate) const LEAKED: i32 = 7;

/// A room in use. It ends everything in it when its input does.
struct Occupied {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    complaints: ChildStderr,
}

/// Waits until a room whose input has ended is empty.
async fn vacated(child: &mut Child) -> io::Result<()> {
    match tokio::time::timeout(CLOSE_BOUND, child.wait()).await {
        Ok(status) => status.map(|_| ()),
        Err(_) => Err(io::Error::other("the control room does not end")),
    }
}

async fn occupy(program: &Path, order: &Order) -> io::Result<Occupied> {
    let mut child = Command::new(program)
        .args([PART_ARGUMENT, Part::Room.name()])
        .env_clear()
        .envs(crate::part::counting())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (Some(mut input), Some(output), Some(complaints)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("the control room has no pipes"));
    };
    let mut line = serde_json::to_string(order).map_err(io::Error::other)?;
    line.push('\n');
    input.write_all(line.as_bytes()).await?;
    Ok(Occupied {
        child,
        input,
        output,
        complaints,
    })
}

/// A program in a room that runs on until this is dropped.
pub(crate) struct Held {
    child: Child,
    input: ChildStdin,
    _complaints: ChildStderr,
}

impl Held {
    /// Ends it, and waits for that.
    pub(crate) async fn close(mut self) -> io::Result<()> {
        drop(self.input);
        vacated(&mut self.child).await
    }
}

/// Starts an order whose program stays, and returns its first line.
pub(crate) async fn hold(program: &Path, order: &Order) -> io::Result<(String, Held)> {
    let Occupied {
        child,
        input,
        output,
        mut complaints,
    } = occupy(program, order).await?;
    let mut line = String::new();
    let mut output = BufReader::new(output.take(OUTPUT_LIMIT));
    if output.read_line(&mut line).await? == 0 {
        (&mut complaints)
            .take(OUTPUT_LIMIT)
            .read_to_string(&mut line)
            .await?;
    }
    let held = Held {
        child,
        input,
        _complaints: complaints,
    };
    Ok((line, held))
}

/// Carries an order out.
pub(crate) async fn perform(program: &Path, order: &Order) -> io::Result<Performance> {
    let Occupied {
        mut child,
        input,
        output,
        complaints,
    } = occupy(program, order).await?;
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let work = async {
        let mut output = output.take(OUTPUT_LIMIT);
        let mut complaints = complaints.take(OUTPUT_LIMIT);
        tokio::try_join!(
            output.read_to_end(&mut said),
            complaints.read_to_end(&mut complained)
        )?;
        child.wait().await
    };
    let ended = match tokio::time::timeout(ROOM_BOUND, work).await {
        Ok(status) => Ended::from_status(status?),
        Err(_) => Ended::TimedOut,
    };
    // Until here: the room ends everything when its input does.
    drop(input);
    vacated(&mut child).await?;
    Ok(Performance {
        output: said,
        complaints: complained,
        ended,
    })
}
