//! A body on its way into one file.
//!
//! One thread opens the file and writes what the client sends, a few pieces
//! behind. It ends with the body, however that ends.

use std::fs::File;
use std::io::Write;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::{FileError, GATHERED_BYTES, open};
use crate::metadata::Metadata;
use crate::rights::{ended_silently, start_as};
use crate::users::User;

/// Pieces that wait to be written.
const PIECES_AHEAD: usize = 2;

/// A piece of this size is written as it came. Smaller ones are gathered:
/// each would keep the whole buffer in which it arrived.
const DIRECT_BYTES: usize = GATHERED_BYTES / 2;

/// Makes or replaces one file.
///
/// Watchers of a small new file see exactly: create, owner, one write. That
/// rules out another name until all is there, so an upload that breaks off
/// leaves what had arrived, as E2B's own envd does.
pub(super) async fn write(
    user: &User,
    path: &str,
    metadata: &Metadata,
    body: impl Stream<Item = Result<Bytes, FileError>> + Unpin,
) -> Result<(), FileError> {
    let (answer, written) = oneshot::channel();
    let (pieces, mut received) = mpsc::channel::<Bytes>(PIECES_AHEAD);
    open_and(user, path, metadata, move |file, path| {
        let _ = answer.send(put_all(file, path, &mut received));
    })
    .await?;
    // A body that breaks off is answered when all is written that came.
    let fed = feed(body, pieces).await;
    written
        .await
        .map_err(|_| FileError::io("write", path, ended_silently()))??;
    fed
}

/// Opens a file to be written, on a thread in the user's name, which then goes
/// on with `work`. Returns when the file is open.
pub(super) async fn open_and(
    user: &User,
    path: &str,
    metadata: &Metadata,
    work: impl FnOnce(File, &str) + Send + 'static,
) -> Result<(), FileError> {
    let (target, owner, attributes) = (path.to_owned(), user.clone(), metadata.clone());
    let (opened, is_open) = oneshot::channel();
    start_as(user, move |assumed| {
        let file = assumed
            .map_err(|source| FileError::thread(&target, source))
            .and_then(|()| open::to_write(&target, &owner, &attributes));
        match file {
            Ok(file) => {
                if opened.send(Ok(())).is_ok() {
                    work(file, &target);
                }
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        }
    })
    .map_err(|source| FileError::thread(path, source))?;
    is_open
        .await
        .map_err(|_| FileError::io("write", path, ended_silently()))?
}

/// Passes a body on, in pieces worth a write, until the writer is gone.
async fn feed(
    mut body: impl Stream<Item = Result<Bytes, FileError>> + Unpin,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(), FileError> {
    let mut gathered = Vec::new();
    while let Some(bytes) = body.next().await {
        let bytes = bytes?;
        if gathered.len() + bytes.len() <= GATHERED_BYTES {
            gathered.extend_from_slice(&bytes);
            continue;
        }
        let before = std::mem::take(&mut gathered);
        if !before.is_empty() && pieces.send(before.into()).await.is_err() {
            return Ok(());
        }
        if bytes.len() < DIRECT_BYTES {
            gathered.extend_from_slice(&bytes);
        } else if pieces.send(bytes).await.is_err() {
            return Ok(());
        }
    }
    if !gathered.is_empty() {
        // The writer says itself why it is gone.
        let _ = pieces.send(gathered.into()).await;
    }
    Ok(())
}

/// Writes every piece and closes the file, which watchers see before the
/// client has its answer.
fn put_all(
    mut file: File,
    path: &str,
    pieces: &mut mpsc::Receiver<Bytes>,
) -> Result<(), FileError> {
    while let Some(bytes) = pieces.blocking_recv() {
        file.write_all(&bytes)
            .map_err(|source| FileError::io("write", path, source))?;
    }
    Ok(())
}
