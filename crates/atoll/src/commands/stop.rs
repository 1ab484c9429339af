//! `atoll stop`: ends the server of a home, and on request its sandboxes.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use atoll_engine::Tier;
use atoll_store::db::{HomeOwner, OwnerError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::node::Node;
use crate::arguments::StopArguments;
use crate::failure::Hinted;
use crate::home::{Home, require_root};

/// A server that is asked to stop finishes what is in flight first.
const STOP_BOUND: Duration = Duration::from_secs(60);

pub(crate) async fn stop(home: &Home, arguments: &StopArguments) -> anyhow::Result<ExitCode> {
    let had_server = stop_server(home)?;
    if had_server {
        eprintln!("the server is stopped");
    } else {
        eprintln!("no server runs on `{}`", home.path().display());
    }
    if arguments.kill {
        require_root()?;
        let node = Node::take(home).await?;
        let lifecycle = node.lifecycle(home, home.runtime(Tier::Container)?)?;
        let ended = lifecycle.end_all().await?;
        node.database.close().await;
        eprintln!("sandboxes ended: {}", ended.buried + ended.reaped);
        if ended.left > 0 {
            return Err(Hinted::error(
                format!("{} sandboxes could not be ended now", ended.left),
                "try again; `atoll doctor` checks what this host offers",
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the server to stop and waits until it has; whether there was one.
fn stop_server(home: &Home) -> anyhow::Result<bool> {
    let Some(pid) = holder(home)? else {
        return Ok(false);
    };
    let server = pidfd_open(pid, PidfdFlags::empty()).context("cannot find the server")?;
    // Still the one that holds the home: not another process with its number.
    if holder(home)? != Some(pid) {
        return Ok(true);
    }
    pidfd_send_signal(&server, Signal::TERM).context("cannot ask the server to stop")?;
    let bound = Timespec::try_from(STOP_BOUND)?;
    if poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&bound))? == 0 {
        let pid = pid.as_raw_nonzero();
        return Err(Hinted::error(
            format!(
                "the server (pid {pid}) has not stopped within {} s",
                STOP_BOUND.as_secs()
            ),
            format!(
                "`kill -9 {pid}` ends it; its sandboxes live on, and the next start takes them up"
            ),
        ));
    }
    Ok(true)
}

/// The process that has the home.
fn holder(home: &Home) -> anyhow::Result<Option<Pid>> {
    match HomeOwner::take(home.path()) {
        Ok(_) => Ok(None),
        Err(OwnerError::Taken { pid, .. }) => {
            let pid = pid
                .and_then(|pid| i32::try_from(pid).ok())
                .and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| {
                Hinted::error(
                    "a process has this home and does not say which",
                    "find it with `fuser` on `server.lock` in the home, and end it",
                )
            })?;
            Ok(Some(pid))
        }
        Err(error) => Err(error.into()),
    }
}
