//! Unpacked layers: the read-only trees that sandboxes mount.
//!
//! `<home>/layers/` (0700, because set-user-id files inside are real) holds
//! per layer
//! - `sha256-<hex>/`: the tree, named by the digest of its uncompressed tar,
//! - `sha256-<hex>.json`: its [`LayerInfo`], which names the compressed blob.
//!
//! A layer is written to a temporary directory beside, made durable with one
//! `syncfs`, and renamed. The record is written before the rename, so after a
//! crash there is the old state, or the whole layer, or a record and a blob
//! from which [`Layers::ensure`] makes it again. The directory of an import
//! under way is locked; [`Layers::sweep`] removes those whose lock is free.

mod archive;
mod entries;
mod pipeline;
mod sparse;
mod staging;
mod unpack;
mod xattr;

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc as blocking;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

pub use archive::ArchiveError;
pub use pipeline::{Progress, no_progress};
pub use unpack::UnpackError;

use crate::StateWrite;
use crate::blobs::{BlobError, Blobs};
use crate::digest::{Digest, Hasher};
use pipeline::{CHUNKS, FromChunks, Hashing, Splitter};
use staging::Staging;

/// The layers of one home.
#[derive(Debug, Clone)]
pub struct Layers {
    directory: PathBuf,
    blobs: Blobs,
}

/// What is known of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInfo {
    /// Its name: the digest of its uncompressed tar.
    pub digest: Digest,
    /// Size of the uncompressed tar.
    pub bytes: u64,
    /// Entries: files, directories, links and whiteouts.
    pub files: u64,
    /// The zstd-compressed tar among the blobs.
    pub blob: Digest,
    /// Size of that blob.
    pub blob_bytes: u64,
}

/// Why a layer could not be made, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// Neither the tree nor a blob to make it from is there.
    #[error("layer {0} is not on this host")]
    Missing(Digest),
    /// The blob of a layer unpacks to something else.
    #[error("the blob of layer {expected} holds another layer: {found}")]
    Mismatch {
        /// The layer that was wanted.
        expected: Digest,
        /// The digest of what was found.
        found: Digest,
    },
    /// The tree to import cannot be read.
    #[error("cannot archive the tree")]
    Archive(#[from] ArchiveError),
    /// The tar stream to import cannot be read.
    #[error("cannot read the tar stream")]
    Source(#[source] io::Error),
    /// The archive was refused or could not be written.
    #[error("cannot unpack the layer")]
    Unpack(#[from] UnpackError),
    /// The compressed copy could not be stored or read.
    #[error("cannot use the blob of the layer")]
    Blob(#[from] BlobError),
    /// The directory of layers cannot be used.
    #[error("cannot use {path}")]
    Directory {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A thread of the import ended without an answer.
    #[error("the import was interrupted")]
    Interrupted,
}

impl Layers {
    /// Layers below `<home>/layers`, made if missing.
    ///
    /// # Errors
    /// When the directory cannot be made or closed to others.
    pub fn open(home: &Path, blobs: Blobs) -> Result<Self, LayerError> {
        let directory = home.join("layers");
        let prepared = fs::create_dir_all(&directory)
            .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)));
        prepared.map_err(|source| LayerError::Directory {
            path: directory.clone(),
            source,
        })?;
        Ok(Self { directory, blobs })
    }

    /// Where the tree of a layer is, whether or not it is there.
    #[must_use]
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.file_name())
    }

    /// What is known of a layer; `None` when it was never imported.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn info(&self, digest: &Digest) -> Result<Option<LayerInfo>, LayerError> {
        let path = self.record_path(digest);
        let failed = |source| LayerError::Directory {
            path: path.clone(),
            source,
        };
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// All layers that have a record, in the order of their digests.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Digest>, LayerError> {
        let failed = |source| LayerError::Directory {
            path: self.directory.clone(),
            source,
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let digest = name
                .to_str()
                .and_then(|name| name.strip_suffix(".json"))
                .and_then(Digest::from_file_name);
            found.extend(digest);
        }
        found.sort();
        Ok(found)
    }

    /// Makes a layer of the tree at `root`, which nobody may change meanwhile.
    ///
    /// # Errors
    /// When it cannot be read, archived, stored or unpacked; nothing is then left.
    pub async fn import_tree(
        &self,
        root: &Path,
        progress: Progress,
    ) -> Result<LayerInfo, LayerError> {
        let root = root.to_owned();
        self.import(progress, move |out| Ok(archive::write_tree(&root, out)?))
            .await
    }

    /// Makes a layer of an uncompressed tar stream.
    ///
    /// # Errors
    /// When it cannot be read to its end marker, stored or unpacked; nothing is then left.
    pub async fn import_tar<R>(
        &self,
        mut reader: R,
        progress: Progress,
    ) -> Result<LayerInfo, LayerError>
    where
        R: Read + Send + 'static,
    {
        self.import(progress, move |out| {
            io::copy(&mut reader, out)
                .map(|_| ())
                .map_err(LayerError::Source)
        })
        .await
    }

    /// The tree of a layer, made again from its blob when it is missing.
    ///
    /// # Errors
    /// When it is neither there nor in the blobs, or the blob is damaged.
    pub async fn ensure(&self, digest: &Digest, progress: Progress) -> Result<PathBuf, LayerError> {
        let path = self.path(digest);
        if path.is_dir() {
            return Ok(path);
        }
        let info = self
            .info(digest)?
            .ok_or_else(|| LayerError::Missing(digest.clone()))?;
        let mut chunks = match self.blobs.get(&info.blob).await {
            Err(BlobError::Missing(_)) => return Err(LayerError::Missing(digest.clone())),
            result => result?,
        };
        let staging = Staging::new(&self.directory)?;
        let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(CHUNKS);
        let unpacked = spawn_blocking(move || {
            let chunks = FromChunks::new(move || receiver.blocking_recv().transpose());
            let inner = zstd::stream::read::Decoder::new(chunks).map_err(UnpackError::Archive)?;
            let mut reader = Hashing {
                inner,
                hasher: Hasher::new(),
                bytes: 0,
                progress,
            };
            unpack::unpack(&mut reader, staging.directory())?;
            Ok::<_, LayerError>((staging, reader.hasher.finish()))
        });
        let mut damage = None;
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| {
                damage = Some(error);
                io::Error::other("the blob cannot be read")
            });
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
        drop(sender);
        let unpacked = unpacked.await.map_err(|_| LayerError::Interrupted)?;
        if let Some(error) = damage {
            return Err(error.into());
        }
        let (staging, found) = unpacked?;
        if &found != digest {
            return Err(LayerError::Mismatch {
                expected: digest.clone(),
                found,
            });
        }
        let target = path.clone();
        spawn_blocking(move || staging.commit(&target))
            .await
            .map_err(|_| LayerError::Interrupted)??;
        Ok(path)
    }

    /// Removes a layer: its tree, its record and its blob. The caller knows
    /// that no sandbox and no template uses it.
    ///
    /// # Errors
    /// When something could not be removed.
    pub async fn remove(&self, digest: &Digest) -> Result<(), LayerError> {
        let info = self.info(digest)?;
        let (directory, path, record) = (
            self.directory.clone(),
            self.path(digest),
            self.record_path(digest),
        );
        spawn_blocking(move || staging::remove_layer(&directory, &path, &record))
            .await
            .map_err(|_| LayerError::Interrupted)??;
        if let Some(info) = info {
            self.blobs.delete(&info.blob).await?;
        }
        Ok(())
    }

    /// Removes what killed imports and removals left; returns how many.
    /// Imports under way, also those of other processes, are not touched.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn sweep(&self) -> Result<usize, LayerError> {
        let failed = |source| LayerError::Directory {
            path: self.directory.clone(),
            source,
        };
        let records = crate::sweep_unfinished(&self.directory).map_err(failed)?;
        Ok(records + staging::sweep(&self.directory)?)
    }

    /// Removes everything that a killed import left behind: unfinished trees,
    /// records and uploads, blobs that no layer names, and records of layers
    /// that are nowhere. Nobody else may use the layers meanwhile.
    ///
    /// # Errors
    /// When something cannot be listed or removed.
    pub async fn sweep_alone(&self) -> Result<usize, LayerError> {
        let mut removed = self.sweep()?;
        removed += self.blobs.sweep(std::time::Duration::ZERO).await?;
        let blobs = self.blobs.list().await?;
        let mut named = std::collections::BTreeSet::new();
        for layer in self.list()? {
            if let Some(info) = self.info(&layer)? {
                named.insert(info.blob);
            }
        }
        for blob in blobs {
            if !named.contains(&blob.digest) {
                self.blobs.delete(&blob.digest).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn record_path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(format!("{}.json", digest.file_name()))
    }

    /// Runs the pipeline with `source` as the writer of the tar stream.
    async fn import<F>(&self, progress: Progress, source: F) -> Result<LayerInfo, LayerError>
    where
        F: FnOnce(&mut dyn Write) -> Result<(), LayerError> + Send + 'static,
    {
        let staging = Staging::new(&self.directory)?;
        let (to_blob, from_source) = mpsc::channel::<io::Result<Bytes>>(CHUNKS);
        let (to_unpacker, for_unpacker) = blocking::sync_channel::<Bytes>(CHUNKS);
        let produced = spawn_blocking(move || {
            let mut splitter =
                Splitter::new(to_blob, to_unpacker, progress).map_err(LayerError::Source)?;
            if let Err(error) = source(&mut splitter) {
                splitter.fail();
                return Err(error);
            }
            splitter.finish().map_err(LayerError::Source)
        });
        let unpacked = spawn_blocking(move || {
            let mut reader = FromChunks::new(move || Ok(for_unpacker.recv().ok()));
            let files = unpack::unpack(&mut reader, staging.directory())?;
            Ok::<_, LayerError>((staging, files))
        });
        let chunks = stream::unfold(from_source, |mut receiver| async move {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        let stored = self.blobs.put(Box::pin(chunks)).await;
        let produced = produced.await.map_err(|_| LayerError::Interrupted)?;
        let unpacked = unpacked.await.map_err(|_| LayerError::Interrupted)?;
        let blob = match stored {
            Ok(blob) => Some(blob),
            // Only the source can tell what went wrong with it.
            Err(BlobError::Source(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let ((digest, bytes), (staging, files)) = match first_cause(produced, unpacked) {
            Ok(outcome) => outcome,
            Err(error) => {
                if let Some(blob) = blob {
                    self.drop_orphan(&blob.digest).await;
                }
                return Err(error);
            }
        };
        let blob = blob.ok_or(LayerError::Interrupted)?;
        let info = LayerInfo {
            digest,
            bytes,
            files,
            blob: blob.digest,
            blob_bytes: blob.bytes,
        };
        let (record, target) = (self.record_path(&info.digest), self.path(&info.digest));
        let written = info.clone();
        spawn_blocking(move || {
            let failed = |source| LayerError::Directory {
                path: record.clone(),
                source,
            };
            let json = serde_json::to_vec_pretty(&written).map_err(|error| failed(error.into()))?;
            crate::write_atomically(StateWrite::LayerRecord, &record, &json).map_err(failed)?;
            staging.commit(&target)
        })
        .await
        .map_err(|_| LayerError::Interrupted)??;
        Ok(info)
    }

    /// Deletes the blob of a failed import unless a layer of that blob exists.
    async fn drop_orphan(&self, blob: &Digest) {
        let used = self.list().is_ok_and(|layers| {
            layers.iter().any(|layer| {
                self.info(layer)
                    .ok()
                    .flatten()
                    .is_some_and(|info| &info.blob == blob)
            })
        });
        if !used {
            // The import has failed with a better reason already.
            let _ = self.blobs.delete(blob).await;
        }
    }
}

type Produced = (Digest, u64);
type Unpacked = (Staging, u64);

/// When the unpacker fails the source sees only a broken pipe, and when the
/// source fails the unpacker sees only an early end: reports the part that
/// failed by itself.
fn first_cause(
    produced: Result<Produced, LayerError>,
    unpacked: Result<Unpacked, LayerError>,
) -> Result<(Produced, Unpacked), LayerError> {
    match (produced, unpacked) {
        (Ok(produced), Ok(unpacked)) => Ok((produced, unpacked)),
        (Err(source), Err(unpack)) if is_broken_pipe(&source) => Err(unpack),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

fn is_broken_pipe(error: &LayerError) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match error {
        LayerError::Source(error) | LayerError::Archive(ArchiveError::Write(error)) => {
            broken(error)
        }
        _ => false,
    }
}
