//! The process beside each sandbox: it makes it, watches it and takes it away.
//!
//! ```text
//! client ── stdin: request, then lifeline ──▶ monitor ──▶ container
//!        ◀─ stdout: one report ─────────────    │
//! anyone ── control.sock: stats, freeze, … ──▶  │
//! ```
//!
//! It has one thread until the sandbox runs, a mount namespace of its own (so
//! that no mount of a sandbox is ever in the host's table), and it is the
//! reaper of the container's processes. It outlives the server, enforces the
//! lifetime and records why the sandbox ended. When it is killed, the kernel
//! kills the sandbox (the guest asks for that), and the lease it held leads
//! the next start of Atoll to what is left.

mod assemble;
pub(crate) mod checkpoint;
mod dismantle;
pub(crate) mod exhaustion;
pub(crate) mod message;
mod resolver;
mod suspension;
mod watch;

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;

use rustix::process::Signal;

use crate::Outcome;
use crate::host::mount::private_mount_namespace;
use message::{Answer, Failure, MonitorRequest, Report};
use watch::Ending;

pub(crate) use assemble::control_path;
pub(crate) use dismantle::{dismantle, release};

/// Body of the hidden command `atoll monitor`.
#[must_use]
pub fn run() -> ExitCode {
    match monitor() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody may be listening any more; the exit status says it too.
            let _ = report(&Report::Failed(failure));
            ExitCode::FAILURE
        }
    }
}

fn monitor() -> Result<(), Failure> {
    let request = read_request()?;
    detach().map_err(|error| Failure::new("cannot prepare the monitor", &error))?;
    let running = assemble::assemble(&request)?;
    let (lease, config) = (running.lease.clone(), request.config.clone());
    let ending = report(&Report::Ready(running.ready()))
        .and_then(|()| watch::watch(running, &request))
        .unwrap_or_else(|error| Ending {
            outcome: Outcome::Crashed {
                detail: format!("the monitor failed: {error}"),
            },
            waiting: Vec::new(),
        });
    let removed = dismantle(&config, &lease, &ending.outcome);
    for mut client in ending.waiting {
        // A client that has gone away needs no answer.
        let _ = message::send(
            &mut client,
            &match &removed {
                Ok(()) => Answer::Ended(ending.outcome.clone()),
                Err(error) => Answer::Failed(format!("cannot remove the sandbox: {error}")),
            },
        );
    }
    removed.map_err(|error| Failure::new("cannot remove the sandbox", &error))
}

fn read_request() -> Result<MonitorRequest, Failure> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .and_then(|_| serde_json::from_str(&line).map_err(io::Error::other))
        .map_err(|error| Failure::new("no valid request on standard input", &error))
}

/// Leaves the client's session and terminal, becomes the reaper of what will
/// be started, and gets a mount namespace of its own.
fn detach() -> io::Result<()> {
    // SAFETY: nothing is open in this process yet but the three standard descriptors;
    // whatever else the client's caller left open is not for a sandbox's monitor.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    let _ = rustix::process::setsid(); // fails only where there is nothing to leave
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    for signal in [Signal::PIPE, Signal::HUP, Signal::INT] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
    }
    private_mount_namespace()
}

/// The one line the client waits for.
fn report(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_string(report).map_err(io::Error::other)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}
