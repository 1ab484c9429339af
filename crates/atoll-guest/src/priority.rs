//! The priority of PID 1, which comes first at the sandbox's processors so that it can
//! end what is too much. Whatever it starts, and what moves much in it, comes as others do:
//! woken up ahead of them for every packet, it would keep them from sending more.

use rustix::io;
use rustix::process::{getpriority_process, setpriority_process};

/// Lets the calling thread, and what it starts, be one of many. It cannot go back.
pub(crate) fn give_up() -> io::Result<()> {
    if getpriority_process(None).is_ok_and(|nice| nice < 0) {
        setpriority_process(None, 0)?;
    }
    Ok(())
}
