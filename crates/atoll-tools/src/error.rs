//! What a model is told when a tool cannot do what it was asked for: a code
//! for programs, the cause, and what to do about it.

use atoll_guest_client::{Code as RpcCode, GuestError};
use serde::Serialize;

/// What a server answers in place of a sandbox that is not there or does not answer.
pub(crate) const BAD_GATEWAY: u16 = 502;

/// Kinds of failure. The list in `docs/mcp.md` is the same, and a test keeps it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// The arguments are not those of the tool.
    InvalidArguments,
    /// There is no such tool.
    UnknownTool,
    /// There is no such sandbox, or it is somebody else's.
    SandboxNotFound,
    /// The sandbox has ended, or cannot be made.
    SandboxUnavailable,
    /// There is no such file or directory.
    FileNotFound,
    /// There is no such process.
    ProcessNotFound,
    /// There is no such thing to read.
    ResourceNotFound,
    /// The sandbox's user may not do that.
    NotPermitted,
    /// It took longer than its timeout, and was ended.
    Timeout,
    /// The kernel that ran the code is gone, with all variables.
    KernelDied,
    /// The sandbox's disk is full.
    DiskFull,
    /// There are as many sandboxes or processes as there may be.
    QuotaExceeded,
    /// This place has no such thing.
    Unsupported,
    /// The caller wants no answer any more.
    Cancelled,
    /// Something else failed.
    Internal,
}

impl ErrorCode {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::InvalidArguments,
        Self::UnknownTool,
        Self::SandboxNotFound,
        Self::SandboxUnavailable,
        Self::FileNotFound,
        Self::ProcessNotFound,
        Self::ResourceNotFound,
        Self::NotPermitted,
        Self::Timeout,
        Self::KernelDied,
        Self::DiskFull,
        Self::QuotaExceeded,
        Self::Unsupported,
        Self::Cancelled,
        Self::Internal,
    ];

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArguments => "INVALID_ARGUMENTS",
            Self::UnknownTool => "UNKNOWN_TOOL",
            Self::SandboxNotFound => "SANDBOX_NOT_FOUND",
            Self::SandboxUnavailable => "SANDBOX_UNAVAILABLE",
            Self::FileNotFound => "FILE_NOT_FOUND",
            Self::ProcessNotFound => "PROCESS_NOT_FOUND",
            Self::ResourceNotFound => "RESOURCE_NOT_FOUND",
            Self::NotPermitted => "NOT_PERMITTED",
            Self::Timeout => "TIMEOUT",
            Self::KernelDied => "KERNEL_DIED",
            Self::DiskFull => "DISK_FULL",
            Self::QuotaExceeded => "QUOTA_EXCEEDED",
            Self::Unsupported => "UNSUPPORTED",
            Self::Cancelled => "CANCELLED",
            Self::Internal => "INTERNAL",
        }
    }
}

/// Why a tool did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}: {cause}\nhint: {remediation}", code.as_str())]
pub struct ToolError {
    /// The kind, for programs.
    pub code: ErrorCode,
    /// What failed, and why.
    pub cause: String,
    /// What to do about it.
    pub remediation: String,
}

impl ToolError {
    /// An error of that kind.
    pub fn new(code: ErrorCode, cause: impl Into<String>, remediation: impl Into<String>) -> Self {
        Self {
            code,
            cause: cause.into(),
            remediation: remediation.into(),
        }
    }

    /// Arguments that make no sense.
    pub fn arguments(cause: impl Into<String>, remediation: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArguments, cause, remediation)
    }

    /// No such sandbox, whether missing or somebody else's.
    #[must_use]
    pub fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::new(
            ErrorCode::SandboxNotFound,
            format!("there is no sandbox `{shown}`"),
            "leave `sandbox_id` out to use this session's own sandbox, or ask `list_sandboxes`",
        )
    }

    /// A sandbox that was there and is not any more.
    #[must_use]
    pub fn sandbox_ended(id: &str) -> Self {
        Self::new(
            ErrorCode::SandboxUnavailable,
            format!("the sandbox `{id}` has ended; its files, variables and processes are lost"),
            "call again without `sandbox_id`: a new sandbox is made",
        )
    }

    /// A sandbox that holds still. It was somebody's will that it does.
    #[must_use]
    pub(crate) fn sandbox_paused(id: &str) -> Self {
        Self::new(
            ErrorCode::SandboxUnavailable,
            format!("the sandbox `{id}` is paused"),
            "resume it through the API, or make another one with `create_sandbox`",
        )
    }

    /// What a guest's refusal means for a file.
    pub(crate) fn of_file(path: &str, error: &GuestError) -> Self {
        match error {
            GuestError::Refused { status: 404, .. }
            | GuestError::Rpc {
                code: RpcCode::NotFound,
                ..
            } => Self::new(
                ErrorCode::FileNotFound,
                format!("there is no `{path}`"),
                "look around with `list_files` or `search_files`",
            ),
            GuestError::Refused {
                status: 403,
                message,
            }
            | GuestError::Rpc {
                code: RpcCode::PermissionDenied,
                message,
            } => Self::new(
                ErrorCode::NotPermitted,
                format!("`{path}`: {message}"),
                "use a path below `/home/user` or `/tmp`, or `sudo` with `execute_command`",
            ),
            GuestError::Refused {
                status: 507,
                message,
            } => Self::new(
                ErrorCode::DiskFull,
                format!("`{path}`: {message}"),
                "remove files that are not needed with `execute_command`",
            ),
            GuestError::Refused {
                status: BAD_GATEWAY,
                ..
            } => Self::of_guest(error),
            GuestError::Refused { message, .. } | GuestError::Rpc { message, .. } => {
                Self::arguments(
                    format!("`{path}`: {message}"),
                    "look at it with `list_files`",
                )
            }
            other => Self::of_guest(other),
        }
    }

    /// What an error of a guest means where no file is concerned.
    pub(crate) fn of_guest(error: &GuestError) -> Self {
        match error {
            GuestError::DeadlineExceeded | GuestError::Timeout { .. } => Self::new(
                ErrorCode::Timeout,
                error.to_string(),
                "allow more with `timeout`, or do less at once",
            ),
            GuestError::Unreachable(_)
            | GuestError::Disconnected(_)
            | GuestError::Unauthorized(_)
            | GuestError::Refused {
                status: BAD_GATEWAY,
                ..
            } => Self::new(
                ErrorCode::SandboxUnavailable,
                error.to_string(),
                "call again; when that fails too, make another one with `create_sandbox`",
            ),
            GuestError::Rpc {
                code: RpcCode::PermissionDenied,
                message,
            } => Self::new(
                ErrorCode::NotPermitted,
                message.clone(),
                "use `sudo` where root is needed",
            ),
            GuestError::Rpc { message, .. } => {
                Self::arguments(message.clone(), "correct the arguments and call again")
            }
            GuestError::Refused { message, .. } => {
                Self::arguments(message.clone(), "correct the arguments and call again")
            }
            GuestError::TooLarge { .. } => Self::new(
                ErrorCode::Internal,
                error.to_string(),
                "show or list less at once, or write it to a file and read that in parts",
            ),
            GuestError::Protocol(_) | GuestError::NotForwarded(_) | GuestError::Source(_) => {
                Self::new(
                    ErrorCode::Internal,
                    error.to_string(),
                    "make another sandbox with `create_sandbox` and use that",
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_lists_every_code_and_no_other() {
        let manual = include_str!("../../../docs/mcp.md");
        let listed: Vec<&str> = manual
            .lines()
            .skip_while(|line| *line != "## Errors")
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        let all: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(listed, all);
    }

    #[test]
    fn a_server_that_finds_no_sandbox_says_nothing_about_arguments() {
        let error = GuestError::Refused {
            status: 502,
            message: "The sandbox was not found".to_owned(),
        };
        let (guest, file) = (
            ToolError::of_guest(&error),
            ToolError::of_file("/a", &error),
        );
        assert_eq!(guest.code, ErrorCode::SandboxUnavailable);
        assert_eq!(file, guest);
    }

    #[test]
    fn a_code_is_written_the_same_way_everywhere() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
