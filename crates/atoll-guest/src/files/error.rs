//! What can go wrong with a file, and which status says so.

use std::io;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::access::error_response;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The user does not exist.
    #[error("{0}")]
    User(#[from] crate::users::UserError),
    /// The path means nothing.
    #[error("{0}")]
    Path(#[from] crate::paths::PathError),
    /// The metadata cannot be kept.
    #[error("{0}")]
    Metadata(#[from] crate::metadata::MetadataError),
    /// The request is not one of ours.
    #[error("{0}")]
    Request(String),
    /// The body broke off, or is not what its headers say.
    #[error("the upload broke off: {0}")]
    Body(String),
    /// No coding of ours pleases the client.
    #[error("no acceptable encoding, supported are `identity` and `gzip`")]
    NotAcceptable,
    /// Nothing is there.
    #[error("path '{path}' does not exist")]
    Missing {
        /// The path.
        path: String,
    },
    /// A directory, pipe, device or socket.
    #[error("path '{path}' is {what}, not a regular file")]
    NotRegular {
        /// The path.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// The disk, or what the user may have of it, is full.
    #[error("not enough disk space available for '{path}'")]
    NoSpace {
        /// The path.
        path: String,
    },
    /// The sandbox has as many processes and threads as it may have.
    #[error(
        "cannot start a thread for '{path}': {source}; end some of the sandbox's processes and try again"
    )]
    NoThread {
        /// The path.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot {operation} '{path}': {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl FileError {
    /// What the kernel said about `path`.
    pub(super) fn io(operation: &'static str, path: &str, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT) => Self::Missing { path },
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { path },
            _ => Self::Io {
                operation,
                path,
                source,
            },
        }
    }

    /// Why no thread acts as the user on `path`.
    pub(super) fn thread(path: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM) => Self::NoThread {
                path: path.to_owned(),
                source,
            },
            _ => Self::io("become the user for", path, source),
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::User(_) => StatusCode::UNAUTHORIZED,
            Self::Path(_)
            | Self::Metadata(_)
            | Self::Request(_)
            | Self::Body(_)
            | Self::NotRegular { .. } => StatusCode::BAD_REQUEST,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::Missing { .. } => StatusCode::NOT_FOUND,
            Self::NoSpace { .. } => StatusCode::INSUFFICIENT_STORAGE,
            Self::NoThread { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Io { source, .. } => match source.raw_os_error() {
                Some(
                    libc::ENOTDIR
                    | libc::EEXIST
                    | libc::EISDIR
                    | libc::ENAMETOOLONG
                    | libc::ELOOP
                    | libc::ENXIO
                    | libc::ETXTBSY
                    | libc::EINVAL,
                ) => StatusCode::BAD_REQUEST,
                Some(libc::EACCES | libc::EPERM | libc::EROFS) => StatusCode::FORBIDDEN,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }
}

impl IntoResponse for FileError {
    fn into_response(self) -> Response {
        error_response(self.status(), &self.to_string())
    }
}
