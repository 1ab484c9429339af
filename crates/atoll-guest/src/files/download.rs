//! `GET /files`.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::conditions::{self, Verdict};
use super::encoding::{self, Accepted, Coding};
use super::lane::Lane;
use super::range::{self, Wanted};
use super::read::{self, Content};
use super::{FileError, FileQuery, disposition, request_user};
use crate::access::{Admission, error_response};
use crate::settings::Settings;

/// `GET /files`, and `HEAD`.
pub(crate) async fn download(
    State(settings): State<Arc<Settings>>,
    Extension(query): Extension<FileQuery>,
    Extension(admission): Extension<Admission>,
    mut request: Request,
) -> Response {
    let lane = Lane::asked_for(&mut request, admission);
    let mut response = find(&settings, &query, request.headers(), admission, lane)
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
    admission: Admission,
    lane: Option<Lane>,
) -> Result<Response, FileError> {
    let user = request_user(settings, query.username.as_deref(), headers, admission)?;
    let path = settings.resolve(query.path.as_deref().unwrap_or_default(), &user)?;
    let content = read::open(&user, &path).await?;
    let modified = conditions::modified(&content.stat);

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

    let wanted = match (coding, range, content.length) {
        (Coding::Identity, Some(range), Some(length)) => range::wanted(range, length),
        (Coding::Identity | Coding::Gzip, _, _) => Wanted::Whole,
    };
    let large = content.length_if_large();
    let mut response = match (lane, coding, wanted, large) {
        (Some(lane), Coding::Identity, Wanted::Whole, Some(length)) => {
            let mut response = lane.send(content, length);
            let headers = response.headers_mut();
            headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
            response
        }
        _ => respond(content, coding, wanted),
    };
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

fn respond(content: Content, coding: Coding, wanted: Wanted) -> Response {
    let whole = content.length;
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
            return response;
        }
    };
    // A file that grows meanwhile is cut where it ended when it was
    // opened; one that shrinks breaks the connection.
    let bytes = content.part(start, length.unwrap_or(u64::MAX));
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
    response
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
