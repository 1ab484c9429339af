//! A body on its way into one file.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use tokio::task::spawn_blocking;

use super::{CHUNK_BYTES, FileError, as_user, open};
use crate::metadata::Metadata;
use crate::users::User;

/// Makes or replaces one file.
///
/// Watchers of a small new file see exactly: create, owner, one write. That
/// rules out another name until all is there, so an upload that breaks off
/// leaves what had arrived, as E2B's own envd does.
pub(super) async fn write(
    user: &User,
    path: &str,
    metadata: &Metadata,
    mut body: impl Stream<Item = Result<Bytes, FileError>> + Unpin,
) -> Result<(), FileError> {
    let (target, owner, attributes) = (path.to_owned(), user.clone(), metadata.clone());
    let file = as_user(user, path, move || {
        open::to_write(&target, &owner, &attributes)
    })
    .await?;
    let file = Arc::new(file);

    let mut gathered = Vec::new();
    while let Some(bytes) = body.next().await {
        let mut bytes = bytes?;
        while bytes.has_remaining() {
            let fits = bytes.len().min(CHUNK_BYTES - gathered.len());
            gathered.extend_from_slice(&bytes[..fits]);
            bytes.advance(fits);
            if gathered.len() == CHUNK_BYTES {
                gathered = put(&file, path, gathered).await?;
            }
        }
    }
    if !gathered.is_empty() {
        put(&file, path, gathered).await?;
    }
    Ok(())
}

/// Writes at once what was gathered, and hands its memory back.
async fn put(file: &Arc<File>, path: &str, mut bytes: Vec<u8>) -> Result<Vec<u8>, FileError> {
    let file = Arc::clone(file);
    spawn_blocking(move || {
        (&*file).write_all(&bytes)?;
        bytes.clear();
        io::Result::Ok(bytes)
    })
    .await
    .map_err(io::Error::other)
    .flatten()
    .map_err(|source| FileError::io("write", path, source))
}
