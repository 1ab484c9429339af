//! Files of a sandbox: whole ones streamed (`upload`, `download`), short ones
//! in JSON (`files/content`), and what there is (`files`).

use std::time::SystemTime;

use atoll_control::executions::Place;
use atoll_guest_client::{Entry, EntryKind, GuestError, GuestText};
use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::TryStreamExt as _;
use http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::{ReaderStream, StreamReader};

use super::super::Plane;
use super::super::moment::rfc3339;
use super::identity::Requester;
use super::problem::Problem;
use super::request::{Body, Named, Params, file_path};

/// Bytes of a file that come in JSON, at most.
const CONTENT_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes of a file that is passed on in one piece.
const PIECE_BYTES: usize = 64 * 1024;
/// Levels of a list, at most.
const DEPTH_MAX: u32 = 16;

/// A file or directory.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "File")]
pub(in super::super) struct FileBody {
    /// Last part of its path.
    name: String,
    /// Its path inside the sandbox.
    path: String,
    /// `file`, `directory`, `symlink` or `other`.
    kind: &'static str,
    /// Bytes.
    size: u64,
    /// Permissions, as `ls` shows them.
    permissions: String,
    /// Its owner.
    owner: String,
    /// When its content was last changed.
    modified_at: Option<String>,
    /// Where a link leads.
    symlink_target: Option<String>,
}

impl From<Entry> for FileBody {
    fn from(entry: Entry) -> Self {
        let modified = entry.modified.and_then(|at| {
            let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            i64::try_from(since.as_millis()).ok()
        });
        Self {
            name: entry.name.into_given(),
            path: entry.path.into_given(),
            kind: match entry.kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Symlink => "symlink",
                EntryKind::Other => "other",
            },
            size: entry.size,
            permissions: entry.permissions.into_given(),
            owner: entry.owner.into_given(),
            modified_at: modified.map(rfc3339),
            symlink_target: entry.symlink_target.map(GuestText::into_given),
        }
    }
}

/// What is in a directory.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct FileList {
    /// As the sandbox lists it.
    files: Vec<FileBody>,
}

/// How bytes are text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Encoding {
    /// They are text.
    #[default]
    Utf8,
    /// They are not.
    Base64,
}

/// The content of a short file.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct FileContent {
    /// Its path.
    path: String,
    /// What is in it: its beginning, where it is long.
    content: String,
    /// How that is written.
    encoding: Encoding,
    /// Bytes of the whole file.
    size: u64,
    /// Whether there is more.
    truncated: bool,
}

/// A short file to write.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewFile {
    /// Its path; directories above it are made.
    path: String,
    /// What is to be in it.
    content: String,
    /// How that is written.
    #[serde(default)]
    encoding: Encoding,
}

/// A directory to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewDirectory {
    /// Its path; directories above it are made.
    path: String,
}

async fn place(plane: &Plane, requester: &Requester, id: &str) -> Result<Place, Problem> {
    Ok(plane.places.find(&requester.caller, id).await?)
}

pub(in super::super) async fn list_files(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
) -> Result<Json<FileList>, Problem> {
    let place = place(&plane, &requester, &id).await?;
    let depth = params.value("depth")?.unwrap_or(1);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(Problem::invalid(format!(
            "'depth' lies between 1 and {DEPTH_MAX}"
        )));
    }
    let guest = place.sandbox.live.guest();
    let listed = guest
        .list_dir(params.path()?, depth, params.text("user"))
        .await?;
    let files = listed.into_iter().map(FileBody::from).collect();
    Ok(Json(FileList { files }))
}

pub(in super::super) async fn stat_file(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
) -> Result<Json<FileBody>, Problem> {
    let place = place(&plane, &requester, &id).await?;
    let guest = place.sandbox.live.guest();
    let entry = guest.stat(params.path()?, params.text("user")).await?;
    Ok(Json(entry.into()))
}

pub(in super::super) async fn remove_file(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
) -> Result<StatusCode, Problem> {
    let place = place(&plane, &requester, &id).await?;
    let guest = place.sandbox.live.guest();
    // A guest does not say whether there was anything.
    guest.stat(params.path()?, params.text("user")).await?;
    guest.remove(params.path()?, params.text("user")).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(in super::super) async fn make_directory(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    body: Result<Body<NewDirectory>, Problem>,
) -> Result<(StatusCode, Json<FileBody>), Problem> {
    let place = place(&plane, &requester, &id).await?;
    let Body(NewDirectory { path }) = body?;
    let guest = place.sandbox.live.guest();
    let is_new = guest.make_dir(file_path(&path)?, None).await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(guest.stat(&path, None).await?.into())))
}

pub(in super::super) async fn read_file(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
) -> Result<Json<FileContent>, Problem> {
    let place = place(&plane, &requester, &id).await?;
    let guest = place.sandbox.live.guest();
    let (path, user) = (params.path()?, params.text("user"));
    let size = guest.stat(path, user).await?.size;
    let mut bytes = Vec::new();
    let reader = guest.read_file(path, user).await?;
    let reading = reader.take(CONTENT_BYTES_MAX).read_to_end(&mut bytes).await;
    reading.map_err(broken)?;
    let read = bytes.len() as u64;
    let (content, encoding) = match String::from_utf8(bytes) {
        Ok(text) => (text, Encoding::Utf8),
        Err(other) => (STANDARD.encode(other.into_bytes()), Encoding::Base64),
    };
    Ok(Json(FileContent {
        path: path.to_owned(),
        content,
        encoding,
        size: size.max(read),
        truncated: read == CONTENT_BYTES_MAX && size > read,
    }))
}

pub(in super::super) async fn write_file(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    body: Result<Body<NewFile>, Problem>,
) -> Result<Json<FileBody>, Problem> {
    let place = place(&plane, &requester, &id).await?;
    let Body(NewFile {
        path,
        content,
        encoding,
    }) = body?;
    let bytes = match encoding {
        Encoding::Utf8 => content.into_bytes(),
        Encoding::Base64 => STANDARD
            .decode(content)
            .map_err(|_| Problem::invalid("'content' is no base64"))?,
    };
    let guest = place.sandbox.live.guest();
    let bytes = std::io::Cursor::new(bytes);
    guest.write_file(file_path(&path)?, None, bytes).await?;
    Ok(Json(guest.stat(&path, None).await?.into()))
}

/// Writes the body of the request, of any length, to a file.
pub(in super::super) async fn upload(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
    request: Request,
) -> Result<(StatusCode, Json<FileBody>), Problem> {
    let place = place(&plane, &requester, &id).await?;
    let (path, user) = (params.path()?, params.text("user"));
    let body = request.into_body().into_data_stream();
    let body = StreamReader::new(body.map_err(std::io::Error::other));
    let guest = place.sandbox.live.guest();
    guest.write_file(path, user, Box::pin(body)).await?;
    Ok((
        StatusCode::CREATED,
        Json(guest.stat(path, user).await?.into()),
    ))
}

/// A file of any length. One that breaks off breaks the connection.
pub(in super::super) async fn download(
    State(plane): State<Plane>,
    requester: Requester,
    Named(id): Named,
    params: Params,
) -> Result<Response, Problem> {
    let place = place(&plane, &requester, &id).await?;
    let guest = place.sandbox.live.guest();
    let reader = guest.read_file(params.path()?, params.text("user")).await?;
    let pieces = ReaderStream::with_capacity(reader, PIECE_BYTES);
    let mut response = HttpBody::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// What a reader of a file failed with.
fn broken(error: std::io::Error) -> Problem {
    match error.downcast::<GuestError>() {
        Ok(error) => error.into(),
        Err(error) => GuestError::Disconnected(error.to_string()).into(),
    }
}
