//! `POST /files`: one file as it is, or several in a form.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::TryStreamExt;

use super::encoding::{self, ByteStream};
use super::lane::Lane;
use super::parts::Parts;
use super::write::write;
use super::{FileError, FileQuery, Written, request_user};
use crate::access::Admission;
use crate::metadata::{self, Metadata};
use crate::settings::Settings;
use crate::users::User;

/// Bytes that the files of one form may take until they are answered: some
/// thirty thousand files.
const WRITTEN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What one file takes besides its path and metadata.
const WRITTEN_BYTES_EACH: usize = 256;

/// `POST /files`.
pub(crate) async fn upload(
    State(settings): State<Arc<Settings>>,
    Extension(query): Extension<FileQuery>,
    Extension(admission): Extension<Admission>,
    mut request: Request,
) -> Result<Response, FileError> {
    let lane = Lane::asked_for(&mut request, admission);
    let headers = request.headers();
    let upload = Upload {
        settings: &settings,
        user: request_user(&settings, query.username.as_deref(), headers, admission)?,
        path: query.path.as_deref().filter(|path| !path.is_empty()),
        metadata: metadata::from_headers(headers)?,
    };
    if let Some(lane) = lane {
        return upload.past_http(lane).await;
    }
    let coding = encoding::of_upload(headers)?;
    let content_type = headers.get(header::CONTENT_TYPE).cloned();
    let media_type = media_type(headers);
    let body = request
        .into_body()
        .into_data_stream()
        .map_err(std::io::Error::other);
    let body = encoding::decode(coding, body);
    let written = match (media_type.as_str(), content_type) {
        ("application/octet-stream", _) => vec![upload.plain(body).await?],
        ("multipart/form-data", Some(content_type)) => upload.form(content_type, body).await?,
        _ => {
            return Err(FileError::Request(format!(
                "unsupported content type `{media_type}`, supported are \
                 `application/octet-stream` and `multipart/form-data`"
            )));
        }
    };
    Ok(Json(written).into_response())
}

/// Type of the body without its parameters.
fn media_type(headers: &HeaderMap) -> String {
    let text = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = text.split(';').next().unwrap_or_default();
    media_type.trim().to_ascii_lowercase()
}

/// What the head of a request says.
struct Upload<'request> {
    settings: &'request Settings,
    user: User,
    path: Option<&'request str>,
    metadata: Metadata,
}

impl Upload<'_> {
    /// The body is the file.
    async fn plain(&self, body: ByteStream) -> Result<Written, FileError> {
        let path = self.settings.resolve(self.required_path()?, &self.user)?;
        let body = body.map_err(|error| FileError::Body(error.to_string()));
        write(&self.user, &path, &self.metadata, body).await?;
        Ok(Written::new(path, self.metadata.clone()))
    }

    /// What the file will be comes later on this connection.
    async fn past_http(&self, lane: Lane) -> Result<Response, FileError> {
        let path = self.settings.resolve(self.required_path()?, &self.user)?;
        lane.receive(&self.user, &path, &self.metadata).await
    }

    fn required_path(&self) -> Result<&str, FileError> {
        self.path
            .ok_or_else(|| FileError::Request("the query parameter `path` is required".to_owned()))
    }

    /// Every part called `file` is a file. Files before a broken part stay.
    async fn form(
        &self,
        content_type: HeaderValue,
        body: ByteStream,
    ) -> Result<Vec<Written>, FileError> {
        let mut parts = Parts::open(content_type, body).await?;
        let mut written = Vec::new();
        let mut seen = HashSet::new();
        let mut written_bytes = 0;
        let metadata_bytes: usize = self
            .metadata
            .iter()
            .map(|(key, value)| WRITTEN_BYTES_EACH + key.len() + value.len())
            .sum();
        while let Some(part) = parts.next().await? {
            if part.said.name.as_deref() != Some("file") {
                part.skip().await?;
                continue;
            }
            let named = part.said.file_name.as_deref();
            let target = self
                .path
                .or(named.filter(|name| !name.is_empty()))
                .ok_or_else(|| FileError::Request("a part has no file name".to_owned()))?;
            let target = self.settings.resolve(target, &self.user)?;
            // Its path is there for the answer, for its name and to be compared.
            written_bytes += WRITTEN_BYTES_EACH + metadata_bytes + 3 * target.len();
            if written_bytes > WRITTEN_BYTES_MAX {
                return Err(FileError::Request(
                    "one request names too many files".to_owned(),
                ));
            }
            if !seen.insert(target.clone()) {
                return Err(FileError::Request(format!(
                    "file '{target}' is given more than once"
                )));
            }
            let bytes = std::pin::pin!(part.bytes());
            write(&self.user, &target, &self.metadata, bytes).await?;
            written.push(Written::new(target, self.metadata.clone()));
        }
        Ok(written)
    }
}
