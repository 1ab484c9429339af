//! Kernel settings below `/proc/sys`, as seen by the calling thread's network namespace.

use std::fs;
use std::io;

use super::error::NetworkError;

/// Writes `value` to the setting `path` (below `/proc/sys`).
pub(super) fn write(path: &str, value: &str) -> Result<(), NetworkError> {
    fs::write(format!("/proc/sys/{path}"), value).map_err(|source| NetworkError::Setting {
        verb: "write",
        path: path.to_owned(),
        source,
    })
}

/// As [`write`], for settings that a kernel without IPv6 does not have.
pub(super) fn write_if_present(path: &str, value: &str) -> Result<(), NetworkError> {
    match write(path, value) {
        Err(NetworkError::Setting { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        other => other,
    }
}

/// Reads the setting `path` (below `/proc/sys`), without its line end.
pub(super) fn read(path: &str) -> Result<String, NetworkError> {
    match fs::read_to_string(format!("/proc/sys/{path}")) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(source) => Err(NetworkError::Setting {
            verb: "read",
            path: path.to_owned(),
            source,
        }),
    }
}
