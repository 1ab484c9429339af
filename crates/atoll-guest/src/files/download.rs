//! `GET /files`.

use std::fs::{File, Metadata as Stat};
use std::io::{self, Cursor, Read, SeekFrom};
use std::sync::Arc;
use std::time::SystemTime;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt};
use tokio::task::spawn_blocking;

use super::conditions::{self, Verdict};
use super::encoding::{self, Accepted, Coding};
use super::range::{self, Wanted};
use super::{CHUNK_BYTES, FileError, FileQuery, as_user, disposition, open, request_user};
use crate::access::error_response;
use crate::settings::Settings;

/// `GET /files`, and `HEAD`.
pub(crate) async fn download(
    State(settings): State<Arc<Settings>>,
    Extension(query): Extension<FileQuery>,
    headers: HeaderMap,
) -> Response {
    let mut response = find(&settings, &query, &headers)
        .await
        .unwrap_or_else(FileError::into_response);
    // Also on refusals: another client's headers may be answered otherwise.
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

async fn find(
    settings: &Settings,
    query: &FileQuery,
    headers: &HeaderMap,
) -> Result<Response, FileError> {
    let user = request_user(settings, query.username.as_deref(), headers)?;
    let path = settings.resolve(query.path.as_deref().unwrap_or_default(), &user)?;
    let target = path.clone();
    let (file, stat) = as_user(&user, &path, move || open::to_read(&target)).await?;
    let modified = conditions::modified(&stat);

    let accepted = Accepted::from_headers(headers);
    let range = headers
        .get(header::RANGE)
        .filter(|_| conditions::range_counts(headers, modified))
        .and_then(|range| range.to_str().ok());
    let coding = match range {
        Some(_) => accepted.best_for_range()?,
        None => accepted.best()?,
    };
    match conditions::verdict(headers, modified) {
        Verdict::Send => {}
        Verdict::NotModified => {
            let mut response = StatusCode::NOT_MODIFIED.into_response();
            describe_time(response.headers_mut(), modified);
            return Ok(response);
        }
        Verdict::Failed => {
            return Ok(error_response(
                StatusCode::PRECONDITION_FAILED,
                &format!("path '{path}' changed since"),
            ));
        }
    }

    let content = Content::look(file, &stat)
        .await
        .map_err(|source| FileError::io("read", &path, source))?;
    let wanted = match (coding, range, content.length) {
        (Coding::Identity, Some(range), Some(length)) => range::wanted(range, length),
        (Coding::Identity | Coding::Gzip, _, _) => Wanted::Whole,
    };
    let mut response = content
        .into_response(coding, wanted)
        .await
        .map_err(|source| FileError::io("read", &path, source))?;
    let headers = response.headers_mut();
    describe_time(headers, modified);
    if wanted != Wanted::Nothing {
        headers.insert(header::CONTENT_TYPE, content_type(&path));
        headers.insert(header::CONTENT_DISPOSITION, disposition::inline(&path));
    }
    Ok(response)
}

fn describe_time(headers: &mut HeaderMap, modified: Option<SystemTime>) {
    let text = modified.map(httpdate::fmt_http_date);
    if let Some(value) = text.and_then(|text| HeaderValue::from_str(&text).ok()) {
        headers.insert(header::LAST_MODIFIED, value);
    }
}

fn content_type(path: &str) -> HeaderValue {
    let guess = mime_guess::from_path(path).first_raw();
    match guess {
        Some(text) if text.starts_with("text/") => {
            HeaderValue::from_str(&format!("{text}; charset=utf-8"))
                .unwrap_or(HeaderValue::from_static(text))
        }
        Some(other) => HeaderValue::from_static(other),
        None => HeaderValue::from_static("application/octet-stream"),
    }
}

/// A file of which the beginning was read.
///
/// Only that tells how long it is: files of procfs claim to be empty and
/// those of sysfs to have a page. What is short is therefore read whole
/// before its length is told.
struct Content {
    head: Bytes,
    rest: tokio::fs::File,
    /// `None` when only its end will tell.
    length: Option<u64>,
}

impl Content {
    async fn look(mut file: File, stat: &Stat) -> io::Result<Self> {
        let (head, file) = spawn_blocking(move || {
            let mut head = Vec::with_capacity(CHUNK_BYTES);
            (&mut file)
                .take(CHUNK_BYTES as u64)
                .read_to_end(&mut head)?;
            io::Result::Ok((head, file))
        })
        .await
        .map_err(io::Error::other)??;
        let length = if head.len() < CHUNK_BYTES {
            Some(head.len() as u64)
        } else {
            Some(stat.len()).filter(|length| *length >= CHUNK_BYTES as u64)
        };
        let mut rest = tokio::fs::File::from_std(file);
        rest.set_max_buf_size(CHUNK_BYTES);
        Ok(Self {
            head: head.into(),
            rest,
            length,
        })
    }

    async fn into_response(self, coding: Coding, wanted: Wanted) -> io::Result<Response> {
        let whole = self.length;
        let (status, start, length) = match wanted {
            Wanted::Whole => (StatusCode::OK, 0, whole),
            Wanted::Part { start, length } => (StatusCode::PARTIAL_CONTENT, start, Some(length)),
            Wanted::Nothing => {
                let whole = whole.unwrap_or_default();
                let mut response = error_response(
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    &format!("the file has {whole} bytes"),
                );
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_RANGE, text(format!("bytes */{whole}")));
                return Ok(response);
            }
        };
        // A file that grows meanwhile is cut where it ended when it was
        // opened; one that shrinks breaks the connection.
        let bytes = self.part(start, length.unwrap_or(u64::MAX)).await?;
        let mut response = Response::new(Body::from_stream(encoding::encode(coding, bytes)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        match coding {
            Coding::Identity => {
                if let Some(length) = length {
                    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
                    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
                }
            }
            Coding::Gzip => {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        if let (Wanted::Part { start, length }, Some(whole)) = (wanted, whole) {
            let last = start + length - 1;
            headers.insert(
                header::CONTENT_RANGE,
                text(format!("bytes {start}-{last}/{whole}")),
            );
        }
        Ok(response)
    }

    async fn part(mut self, start: u64, length: u64) -> io::Result<impl AsyncRead> {
        let head_length = self.head.len() as u64;
        let head = if start < head_length {
            let bound = |position: u64| usize::try_from(position).unwrap_or(usize::MAX);
            let end = start.saturating_add(length).min(head_length);
            self.head.slice(bound(start)..bound(end))
        } else {
            self.rest.seek(SeekFrom::Start(start)).await?;
            Bytes::new()
        };
        let left = length - head.len() as u64;
        Ok(AsyncReadExt::chain(Cursor::new(head), self.rest.take(left)))
    }
}

/// ASCII that we wrote ourselves.
fn text(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_the_extension() {
        for (path, expected) in [
            ("/a.txt", "text/plain; charset=utf-8"),
            ("/a.HTML", "text/html; charset=utf-8"),
            ("/a.json", "application/json"),
            ("/a.png", "image/png"),
            ("/a.tar.gz", "application/gzip"),
            ("/a.unheard-of", "application/octet-stream"),
            ("/txt", "application/octet-stream"),
            ("/", "application/octet-stream"),
        ] {
            assert_eq!(content_type(path), expected, "{path}");
        }
    }
}
