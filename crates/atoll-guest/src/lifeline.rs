//! What the host says through the pipe that was PID 1's standard input: that
//! memory has run out or was restored, by a byte, and that it is gone, by the end.
//!
//! The kernel of a gVisor sandbox knows no end of memory. The host does, and
//! asks; so the biggest process ends and not the whole sandbox.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Signal;
use tokio::io::Interest;

use crate::interpreter::Interpreter;
use crate::process::stream::Stream;
use crate::process::tree;

/// Asks for the end of the biggest process.
const MAKE_ROOM: u8 = b'm';

/// Says that all of this was on disk, and that others may go on from the same moment.
const RESTORED: u8 = b'r';

/// Does what the host asks for, until it is gone.
pub(crate) async fn listen(lifeline: Option<OwnedFd>, interpreter: &Interpreter) -> io::Result<()> {
    let Some(lifeline) = lifeline else {
        return std::future::pending().await;
    };
    let lifeline = Stream::new(lifeline, Interest::READABLE)?;
    let mut buffer = [0_u8; 64];
    while let Some(words) = lifeline.read(&mut buffer).await? {
        if words.contains(&RESTORED) {
            interpreter.seed_again();
        }
        // However often it asked meanwhile, one end makes room for all.
        if words.contains(&MAKE_ROOM)
            && let Some(pid) = biggest_process()
        {
            tree::send(pid, Signal::KILL);
        }
    }
    Err(io::Error::other("the host is gone"))
}

/// The process with the most memory, PID 1 aside.
fn biggest_process() -> Option<i32> {
    let entries = fs::read_dir("/proc").ok()?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != 1)
        .filter_map(|pid| {
            // It may end between the listing and the read.
            let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
            let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
            Some((pages, pid))
        })
        .max()
        .map(|(_, pid)| pid)
}
