//! Programs of the host that Atoll calls.

use std::io;
use std::process::{Command, Stdio};

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
    Err(io::Error::other(format!("`{program}` failed ({}): {}", output.status, detail.trim())))
}
