//! `GET` and `POST /files`: whole files in and out, streamed, with the
//! rights of the user who asks.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, Multipart, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::io::ReaderStream;

use crate::access::{basic_user, error_response};
use crate::rights::act_as;
use crate::settings::Settings;
use crate::users::User;

/// Bytes of a file in memory at once, per request.
const CHUNK_BYTES: usize = 64 * 1024;

/// Query of both methods.
#[derive(Debug, Deserialize)]
pub(crate) struct FileQuery {
    path: Option<String>,
    username: Option<String>,
}

/// One written file, as clients expect it: no further keys.
#[derive(Debug, Serialize)]
struct Written {
    name: String,
    path: String,
    r#type: &'static str,
}

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The user does not exist.
    #[error("{0}")]
    User(#[from] crate::users::UserError),
    /// The path means nothing.
    #[error("{0}")]
    Path(#[from] crate::paths::PathError),
    /// The request is not one of ours.
    #[error("{0}")]
    Request(String),
    /// A directory, pipe, device or socket.
    #[error("path '{path}' is {what}, not a regular file")]
    NotRegular {
        /// The path.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// The kernel refused.
    #[error("{operation} '{path}': {source}")]
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
    fn status(&self) -> StatusCode {
        match self {
            Self::User(_) => StatusCode::UNAUTHORIZED,
            Self::Path(_) | Self::Request(_) | Self::NotRegular { .. } => StatusCode::BAD_REQUEST,
            Self::Io { source, .. } => match source.raw_os_error() {
                Some(libc::ENOENT) => StatusCode::NOT_FOUND,
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
                Some(libc::ENOSPC | libc::EDQUOT) => StatusCode::INSUFFICIENT_STORAGE,
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

/// `GET /files`.
pub(crate) async fn download(
    State(settings): State<Arc<Settings>>,
    Query(query): Query<FileQuery>,
    headers: HeaderMap,
) -> Result<Response, FileError> {
    let user = request_user(&settings, &query, &headers)?;
    let path = settings.resolve(query.path.as_deref().unwrap_or_default(), &user)?;
    let failed = |operation, source| FileError::Io {
        operation,
        path: path.clone(),
        source,
    };

    let target = path.clone();
    let file = act_as(&user, move || open_to_read(Path::new(&target)))
        .await
        .map_err(|source| failed("open", source))?;
    let length = regular_length(&file, &path)?;
    let mut file = tokio::fs::File::from_std(file);
    file.set_max_buf_size(CHUNK_BYTES);

    // procfs says 0 and then has bytes, so an empty file is one that reads empty.
    let mut first = vec![0; CHUNK_BYTES];
    let got = file
        .read(&mut first)
        .await
        .map_err(|source| failed("read", source))?;
    first.truncate(got);
    let known_length = if got == 0 {
        Some(0)
    } else {
        Some(length).filter(|length| *length > 0)
    };
    // A file that grows meanwhile is cut where it ended when it was opened.
    let left = known_length.map_or(u64::MAX, |length| length.saturating_sub(got as u64));
    first.truncate(
        known_length
            .and_then(|length| usize::try_from(length).ok())
            .unwrap_or(usize::MAX),
    );
    let rest = ReaderStream::with_capacity(file.take(left), CHUNK_BYTES);
    let body = Body::from_stream(
        futures_util::stream::once(std::future::ready(Ok(Bytes::from(first)))).chain(rest),
    );

    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert(header::CONTENT_DISPOSITION, disposition(&path));
    if let Some(length) = known_length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(response)
}

/// `POST /files`.
pub(crate) async fn upload(
    State(settings): State<Arc<Settings>>,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Result<Response, FileError> {
    let user = request_user(&settings, &query, request.headers())?;
    let content_type = request
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if request
        .headers()
        .get(header::CONTENT_ENCODING)
        .is_some_and(|encoding| encoding != "identity")
    {
        return Err(FileError::Request(
            "unsupported content encoding".to_owned(),
        ));
    }
    match media_type.as_str() {
        "application/octet-stream" => {
            let path = query.path.as_deref().filter(|path| !path.is_empty());
            let path = path.ok_or_else(|| {
                FileError::Request("the query parameter `path` is required".to_owned())
            })?;
            let path = settings.resolve(path, &user)?;
            let mut body = request
                .into_body()
                .into_data_stream()
                .map_err(|error| io::Error::other(error.to_string()));
            let result = write_file(&user, &path, &mut body).await;
            if result.is_err() {
                // A client that still sends would see a broken connection
                // instead of the reason.
                while let Some(Ok(_)) = body.next().await {}
            }
            result?;
            Ok(Json([written(path)]).into_response())
        }
        "multipart/form-data" => {
            let mut parts = Multipart::from_request(request, &())
                .await
                .map_err(|error| FileError::Request(error.body_text()))?;
            let result = write_parts(&settings, &user, query.path.as_deref(), &mut parts).await;
            if result.is_err() {
                while let Ok(Some(_)) = parts.next_field().await {}
            }
            Ok(Json(result?).into_response())
        }
        _ => Err(FileError::Request(format!(
            "unsupported content type `{media_type}`"
        ))),
    }
}

async fn write_parts(
    settings: &Settings,
    user: &User,
    path: Option<&str>,
    parts: &mut Multipart,
) -> Result<Vec<Written>, FileError> {
    let mut done: Vec<Written> = Vec::new();
    while let Some(part) = parts
        .next_field()
        .await
        .map_err(|error| FileError::Request(error.body_text()))?
    {
        if part.name() != Some("file") {
            continue;
        }
        let target = match path.filter(|path| !path.is_empty()) {
            Some(path) => path,
            None => part
                .file_name()
                .ok_or_else(|| FileError::Request("a part has no file name".to_owned()))?,
        };
        let target = settings.resolve(target, user)?;
        if done.iter().any(|written| written.path == target) {
            return Err(FileError::Request(format!(
                "file '{target}' is given more than once"
            )));
        }
        let body = part.map_err(|error| io::Error::other(error.body_text()));
        write_file(user, &target, body).await?;
        done.push(written(target));
    }
    Ok(done)
}

/// Creates or replaces one file. Watchers see exactly: create, owner, write.
async fn write_file(
    user: &User,
    path: &str,
    mut body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
) -> Result<(), FileError> {
    let failed = |operation, source| FileError::Io {
        operation,
        path: path.to_owned(),
        source,
    };
    let (target, owner) = (path.to_owned(), (user.uid, user.gid));
    let file = act_as(user, move || open_to_write(Path::new(&target), owner))
        .await
        .map_err(|source| failed("open", source))?;
    regular_length(&file, path)?;

    let mut file = tokio::fs::File::from_std(file);
    file.set_max_buf_size(CHUNK_BYTES);
    while let Some(bytes) = body.next().await {
        let bytes =
            bytes.map_err(|error| FileError::Request(format!("the upload broke off: {error}")))?;
        file.write_all(&bytes)
            .await
            .map_err(|source| failed("write", source))?;
    }
    // Buffered bytes are written in the background until this returns.
    file.flush().await.map_err(|source| failed("write", source))
}

fn open_to_read(path: &Path) -> io::Result<File> {
    // Not waiting for a writer keeps pipes from hanging us.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
}

fn open_to_write(path: &Path, (uid, gid): (u32, u32)) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o666)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if file.metadata()?.is_file() {
        // Somebody else's file that the user may write stays that one's.
        let _ = fchown(&file, Some(uid), Some(gid));
    }
    Ok(file)
}

/// The length of a regular file; an error for anything else.
fn regular_length(file: &File, path: &str) -> Result<u64, FileError> {
    let metadata = file.metadata().map_err(|source| FileError::Io {
        operation: "stat",
        path: path.to_owned(),
        source,
    })?;
    let what = file_kind(metadata.file_type());
    if metadata.is_file() {
        Ok(metadata.len())
    } else {
        Err(FileError::NotRegular {
            path: path.to_owned(),
            what,
        })
    }
}

fn file_kind(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn request_user(
    settings: &Settings,
    query: &FileQuery,
    headers: &HeaderMap,
) -> Result<User, FileError> {
    let named = query
        .username
        .clone()
        .filter(|name| !name.is_empty())
        .or_else(|| basic_user(headers));
    Ok(settings.user(named.as_deref())?)
}

fn written(path: String) -> Written {
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    Written {
        name,
        path,
        r#type: "file",
    }
}

fn disposition(path: &str) -> HeaderValue {
    let name: String = path
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    HeaderValue::from_str(&format!("inline; filename*=utf-8''{name}"))
        .unwrap_or(HeaderValue::from_static("inline"))
}
