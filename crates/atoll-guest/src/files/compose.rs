//! `POST /files/compose`: several files become one.

use std::fs::{self, File, Metadata as Stat};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{FileError, Written, as_user, open, request_user};
use crate::access::{Admission, error_response};
use crate::metadata::Metadata;
use crate::settings::Settings;
use crate::users::User;

/// Names tried for the file that becomes the destination.
const ATTEMPTS: usize = 1000;

/// Makes the names of files under way differ.
static COUNTER: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Deserialize)]
struct ComposeRequest {
    #[serde(default)]
    source_paths: Vec<String>,
    #[serde(default)]
    destination: String,
    #[serde(default)]
    username: Option<String>,
}

/// `POST /files/compose`.
pub(crate) async fn compose(
    State(settings): State<Arc<Settings>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(error) => return error_response(error.status(), &error.body_text()),
    };
    match composed(&settings, &headers, &body).await {
        Ok(written) => Json(written).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn composed(
    settings: &Settings,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Written, FileError> {
    let request: ComposeRequest = serde_json::from_slice(body)
        .map_err(|error| FileError::Request(format!("the body is not understood: {error}")))?;
    if request.source_paths.is_empty() {
        return Err(FileError::Request(
            "`source_paths` must not be empty".to_owned(),
        ));
    }
    if request.destination.is_empty() {
        return Err(FileError::Request("`destination` is required".to_owned()));
    }
    let user = request_user(
        settings,
        request.username.as_deref(),
        headers,
        Admission::Token,
    )?;
    let destination = settings.resolve(&request.destination, &user)?;
    let mut sources = Vec::new();
    for source in &request.source_paths {
        sources.push(settings.resolve(source, &user)?);
    }
    let (target, owner) = (destination.clone(), user.clone());
    as_user(&user, &destination, move || {
        concatenate(&sources, &target, &owner)
    })
    .await?;
    Ok(Written::new(destination, Metadata::new()))
}

/// Writes beside the destination, takes its place, and only then deletes the
/// sources: whatever fails before leaves all as it was.
fn concatenate(sources: &[String], destination: &str, user: &User) -> Result<(), FileError> {
    let failed = |operation, source| FileError::io(operation, destination, source);
    let present = match fs::metadata(destination) {
        Ok(stat) => {
            open::require_regular(destination, &stat)?;
            Some(identity(&stat))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed("stat", error)),
    };
    let mut read = Vec::new();
    for source in sources {
        let stat = fs::metadata(source).map_err(|error| FileError::io("stat", source, error))?;
        open::require_regular(source, &stat)?;
        // By another name, too: it would be deleted as a source at the end.
        if source == destination || Some(identity(&stat)) == present {
            return Err(FileError::Request(format!(
                "source '{source}' is the destination"
            )));
        }
        read.push((source, identity(&stat)));
    }

    // A link stays one, as for an upload: what it points to is replaced.
    let place = match present {
        Some(_) => fs::canonicalize(destination).map_err(|error| failed("resolve", error))?,
        None => PathBuf::from(destination),
    };
    let mut pending = Pending::beside(&place).map_err(|error| failed("make a file for", error))?;
    let stat = open::regular(destination, &pending.file)?;
    open::own(&pending.file, &stat, user).map_err(|error| failed("give the owner to", error))?;
    for (source, _) in &read {
        let (mut file, _) = open::to_read(source)?;
        // In the kernel where the two file systems can.
        io::copy(&mut file, &mut pending.file).map_err(|error| failed("write", error))?;
    }
    pending
        .replace(&place)
        .map_err(|error| failed("replace", error))?;
    for (source, identity) in read {
        delete(source, identity);
    }
    Ok(())
}

/// Which file a path means, whatever its name.
fn identity(stat: &Stat) -> (u64, u64) {
    (stat.dev(), stat.ino())
}

/// Deletes a source, unless something else has its name by now. All bytes
/// are where they belong already, so a source that stays is no error.
fn delete(path: &str, read: (u64, u64)) {
    if fs::metadata(path).is_ok_and(|stat| identity(&stat) == read) {
        let _ = fs::remove_file(path);
    }
}

/// A file under way, which vanishes unless it takes its place.
struct Pending {
    file: File,
    path: Option<PathBuf>,
}

impl Pending {
    fn beside(place: &Path) -> io::Result<Self> {
        let directory = place.parent().unwrap_or(Path::new("/"));
        for _ in 0..ATTEMPTS {
            // Short whatever the name of the destination is, which may have
            // the greatest length already.
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".atoll-compose-{number}"));
            match open::make_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    return Ok(Self {
                        file: file?,
                        path: Some(path),
                    });
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn replace(mut self, place: &Path) -> io::Result<()> {
        if let Some(path) = &self.path {
            fs::rename(path, place)?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}
