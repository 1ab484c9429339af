//! Programs that Atoll starts on the host.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::{HostObject, creates};

/// Runs `program` to its end. A missing one is named with the package that has it.
pub(crate) fn run(program: &str, package: &str, arguments: &[String]) -> io::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                io::ErrorKind::NotFound,
                format!("`{program}` is not installed (Debian package `{package}`)"),
            ),
            _ => error,
        })?;
    if output.status.success() {
        return Ok(());
    }
    let detail = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "`{program}` failed ({}): {}",
        output.status,
        detail.trim()
    )))
}

/// Starts a process that goes on by itself.
pub(crate) fn spawn(object: HostObject, command: &mut Command) -> io::Result<Child> {
    creates(object, || command.spawn())
}

/// Runs `command` to its end; what it makes is named by the caller.
pub(crate) fn status(command: &mut Command) -> io::Result<ExitStatus> {
    command.status()
}
