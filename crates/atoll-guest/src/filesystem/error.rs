//! Why an operation was refused, and the code under which clients learn it.

use std::io;

use connectrpc::ConnectError;

use crate::paths::PathError;
use crate::users::UserError;

/// Why an operation on a path was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesystemError {
    /// The user does not exist.
    #[error("{0}")]
    User(#[from] UserError),
    /// The path means nothing.
    #[error("{0}")]
    Path(#[from] PathError),
    /// There is no such file.
    #[error("file not found: {0}")]
    FileNotFound(String),
    /// There is nothing to move.
    #[error("source file not found: {0}")]
    SourceNotFound(String),
    /// There is no such directory.
    #[error("path not found: {0}")]
    PathNotFound(String),
    /// The directory to make is there.
    #[error("directory already exists: {0}")]
    DirectoryExists(String),
    /// Something else has the name of the directory to make.
    #[error("path already exists but it is not a directory: {0}")]
    ExistsAsFile(String),
    /// A directory is needed.
    #[error("path is not a directory: {0}")]
    NotADirectory(String),
    /// The destination of a move is a directory with something in it.
    #[error("destination is a directory that is not empty: {0}; remove it first")]
    DestinationNotEmpty(String),
    /// A directory cannot be below itself.
    #[error("cannot move '{0}' into itself")]
    IntoItself(String),
    /// Both ends of a move are on different file systems.
    #[error(
        "cannot move '{source_path}' to '{destination}': they are on different file systems; \
         copy it with a command (`cp -a`) and remove the source"
    )]
    OtherFilesystem {
        /// From where.
        source_path: String,
        /// To where.
        destination: String,
    },
    /// Somebody wants to remove everything.
    #[error("refusing to remove '/': remove what is in it by name")]
    Root,
    /// A directory does not get empty because something writes to it.
    #[error("cannot remove '{0}': something keeps adding files to it; stop that and try again")]
    Refilled(String),
    /// A listing that would not fit.
    #[error(
        "directory '{path}' has more than {entries_max} entries or too long paths for one \
         listing; list with a smaller depth or list its directories one by one"
    )]
    TooManyEntries {
        /// The listed directory.
        path: String,
        /// The limit.
        entries_max: usize,
    },
    /// The kernel refused.
    #[error("{operation} '{path}': {}", text(.error))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The guest has no thread for it.
    #[error("cannot act as the user: {}", text(.0))]
    Thread(io::Error),
}

/// An error without the number that Rust adds.
pub(crate) fn text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Turns what the kernel said about `path` into an error.
pub(crate) fn failed(
    operation: &'static str,
    path: &str,
) -> impl FnOnce(rustix::io::Errno) -> FilesystemError {
    move |errno| FilesystemError::Io {
        operation,
        path: path.to_owned(),
        error: errno.into(),
    }
}

impl From<FilesystemError> for ConnectError {
    fn from(error: FilesystemError) -> Self {
        let message = error.to_string();
        match error {
            FilesystemError::User(_) => Self::unauthenticated(message),
            FilesystemError::FileNotFound(_)
            | FilesystemError::SourceNotFound(_)
            | FilesystemError::PathNotFound(_) => Self::not_found(message),
            FilesystemError::DirectoryExists(_) => Self::already_exists(message),
            FilesystemError::Path(_)
            | FilesystemError::ExistsAsFile(_)
            | FilesystemError::NotADirectory(_)
            | FilesystemError::IntoItself(_)
            | FilesystemError::Root => Self::invalid_argument(message),
            FilesystemError::DestinationNotEmpty(_) | FilesystemError::OtherFilesystem { .. } => {
                Self::failed_precondition(message)
            }
            FilesystemError::Refilled(_) => Self::aborted(message),
            FilesystemError::TooManyEntries { .. } | FilesystemError::Thread(_) => {
                Self::resource_exhausted(message)
            }
            FilesystemError::Io { error, .. } => from_kernel(&error, message),
        }
    }
}

/// The code that fits what the kernel said.
pub(crate) fn from_kernel(error: &io::Error, message: String) -> ConnectError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => ConnectError::not_found(message),
        Some(
            libc::ENOTDIR
            | libc::EISDIR
            | libc::EEXIST
            | libc::ENAMETOOLONG
            | libc::ELOOP
            | libc::EINVAL,
        ) => ConnectError::invalid_argument(message),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => ConnectError::permission_denied(message),
        Some(
            libc::ENOSPC
            | libc::EDQUOT
            | libc::EMFILE
            | libc::ENFILE
            | libc::ENOMEM
            | libc::EAGAIN
            | libc::EMLINK,
        ) => ConnectError::resource_exhausted(message),
        Some(libc::EBUSY | libc::ETXTBSY | libc::ENOTEMPTY) => {
            ConnectError::failed_precondition(message)
        }
        _ => ConnectError::internal(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_has_a_code_that_helps() {
        let code = |errno| {
            ConnectError::from(FilesystemError::Io {
                operation: "mkdir",
                path: "/x".to_owned(),
                error: io::Error::from_raw_os_error(errno),
            })
        };
        for (errno, expected) in [
            (
                libc::ENOENT,
                "not_found: mkdir '/x': No such file or directory",
            ),
            (
                libc::ENOSPC,
                "resource_exhausted: mkdir '/x': No space left on device",
            ),
            (
                libc::EDQUOT,
                "resource_exhausted: mkdir '/x': Disk quota exceeded",
            ),
            (
                libc::EACCES,
                "permission_denied: mkdir '/x': Permission denied",
            ),
            (
                libc::EROFS,
                "permission_denied: mkdir '/x': Read-only file system",
            ),
            (
                libc::ENAMETOOLONG,
                "invalid_argument: mkdir '/x': File name too long",
            ),
            (
                libc::ELOOP,
                "invalid_argument: mkdir '/x': Too many levels of symbolic links",
            ),
            (
                libc::ENOTDIR,
                "invalid_argument: mkdir '/x': Not a directory",
            ),
            (
                libc::EBUSY,
                "failed_precondition: mkdir '/x': Device or resource busy",
            ),
            (libc::EIO, "internal: mkdir '/x': Input/output error"),
        ] {
            let error = code(errno);
            let said = format!(
                "{}: {}",
                error.code.as_str(),
                error.message.as_deref().unwrap_or_default()
            );
            assert_eq!(said, expected);
        }
    }
}
