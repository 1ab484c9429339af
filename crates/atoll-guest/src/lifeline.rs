//! What the host says through the pipe that was PID 1's standard input: that
//! memory has run out or was restored, by a byte, and that it is gone, by the end.
//!
//! The kernel of a gVisor sandbox knows no end of memory. The host does, and
//! asks; so the biggest process ends and not the whole sandbox.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;

use crate::interpreter::{Interpreter, hold_kernels};
use crate::process::room;
use crate::process::stream::Stream;

/// Asks for the end of whoever has most memory.
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
        if words.contains(&MAKE_ROOM) {
            // What forks without end in a cell leaves nobody the time to look around.
            let _held = hold_kernels();
            room::make();
        }
    }
    Err(io::Error::other("the host is gone"))
}
