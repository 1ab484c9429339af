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
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::{ReaderStream, StreamReader};

use super::super::Plane;
use super::super::moment::rfc3339;
use super::identity::{Requester, lifeline};
use super::problem::Problem;
use super::request::{Body, Named, Params, file_path};

/// Bytes of a file that come in JSON, at most.
const CONTENT_BYTES_MAX: usize = 1024 * 1024;
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
    // One byte more tells whether there is more, whatever size it says it has.
    let mut reader = reader.take(CONTENT_BYTES_MAX as u64 + 1);
    reader.read_to_end(&mut bytes).await.map_err(broken)?;
    let read = bytes.len() as u64;
    let truncated = bytes.len() > CONTENT_BYTES_MAX;
    let (content, encoding) = shown(bytes);
    Ok(Json(FileContent {
        path: path.to_owned(),
        content,
        encoding,
        size: size.max(read),
        truncated,
    }))
}

/// The beginning of a file as it is shown: as text, if it is one as far as it goes.
fn shown(mut bytes: Vec<u8>) -> (String, Encoding) {
    let is_cut = bytes.len() > CONTENT_BYTES_MAX;
    bytes.truncate(CONTENT_BYTES_MAX);
    match String::from_utf8(bytes) {
        Ok(text) => (text, Encoding::Utf8),
        Err(error) => {
            let whole = error.utf8_error().valid_up_to();
            let is_half = is_cut && error.utf8_error().error_len().is_none();
            let mut bytes = error.into_bytes();
            if is_half {
                // The rest of a character is in what was cut off.
                bytes.truncate(whole);
            }
            match String::from_utf8(bytes) {
                Ok(text) => (text, Encoding::Utf8),
                Err(other) => (STANDARD.encode(other.into_bytes()), Encoding::Base64),
            }
        }
    }
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
    let body = while_allowed(&plane, &requester, body.map_err(std::io::Error::other)).await?;
    let body = StreamReader::new(body);
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
    let pieces = while_allowed(&plane, &requester, pieces).await?;
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

/// Bytes on their way, for as long as the key is valid: they break off with it.
async fn while_allowed<S>(
    plane: &Plane,
    requester: &Requester,
    bytes: S,
) -> Result<impl Stream<Item = std::io::Result<Bytes>> + Send + use<S>, Problem>
where
    S: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
{
    let over = Box::pin(lifeline(plane, requester).await?.broken());
    let state = (Box::pin(bytes), over, false);
    Ok(stream::unfold(
        state,
        |(mut bytes, mut over, is_over)| async move {
            if is_over {
                return None;
            }
            tokio::select! {
                biased;
                _ = &mut over => {
                    let error = std::io::Error::other("the key is not valid any more");
                    Some((Err(error), (bytes, over, true)))
                }
                piece = bytes.next() => Some((piece?, (bytes, over, false))),
            }
        },
    ))
}

/// What a reader of a file failed with.
fn broken(error: std::io::Error) -> Problem {
    match error.downcast::<GuestError>() {
        Ok(error) => error.into(),
        Err(error) => GuestError::Disconnected(error.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_text_wherever_it_is_cut() {
        let mut long = vec![b'a'; CONTENT_BYTES_MAX - 1];
        long.extend("ü".as_bytes());
        let (text, encoding) = shown(long.clone());
        assert_eq!(
            (text.len(), encoding),
            (CONTENT_BYTES_MAX - 1, Encoding::Utf8)
        );
        // Half a character at the end of a whole file is none.
        let half = vec![b'a', 0xc3];
        assert_eq!(shown(half).1, Encoding::Base64);
        long[0] = 0xff;
        assert_eq!(shown(long).1, Encoding::Base64);
    }
}
