//! The tools, one file per kind.

pub(crate) mod execute_command;
pub(crate) mod files;
pub(crate) mod install_packages;
pub(crate) mod output;
pub(crate) mod processes;
pub(crate) mod run_code;
pub(crate) mod sandboxes;
pub(crate) mod search_files;

use std::time::Duration;

use crate::error::ToolError;

/// Longest time that a call may take.
pub(crate) const TIMEOUT_MAX_SECONDS: f64 = 3600.0;

/// A timeout in seconds, as models write it.
pub(crate) fn timeout(seconds: Option<f64>, default: Duration) -> Result<Duration, ToolError> {
    let Some(seconds) = seconds else {
        return Ok(default);
    };
    if seconds.is_finite() && seconds > 0.0 && seconds <= TIMEOUT_MAX_SECONDS {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(ToolError::arguments(
        format!("a timeout of {seconds} seconds is not possible"),
        format!(
            "give seconds above 0 and up to {TIMEOUT_MAX_SECONDS}; start what takes longer with `start_process`"
        ),
    ))
}
