//! Immutable bytes by digest, on the local disk today and in a bucket tomorrow.
//!
//! A blob is written under a random name while its digest is computed, and
//! takes its real name only when it is whole: `sha256/<hex>`. Readers verify
//! what they get, so a damaged disk or bucket is noticed and never mounted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};

use atoll_failpoint::{Moment, reach};

use crate::StateWrite;
use crate::digest::{Digest, Hasher};

/// Unfinished uploads live here until they are renamed.
const INCOMING: &str = "incoming";
/// Finished blobs live here.
const FINISHED: &str = "sha256";
/// Size of one part; object stores want at least 5 MiB.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts in flight at once, which bounds memory.
const PARTS_IN_FLIGHT: usize = 4;

/// Blobs by digest.
#[derive(Debug, Clone)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    /// Directory of a local store, which can hold files that listing hides.
    local: Option<PathBuf>,
}

/// What is known of a stored blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobInfo {
    /// Its name.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
}

/// Why a blob could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// It is not there.
    #[error("blob {0} does not exist")]
    Missing(Digest),
    /// It is not what it was.
    #[error("blob {expected} is damaged: its content has the digest {found}")]
    Damaged {
        /// The name under which it is stored.
        expected: Digest,
        /// What its bytes hash to.
        found: Digest,
    },
    /// The source of the bytes failed; nothing was stored.
    #[error("cannot read the bytes to store")]
    Source(#[source] io::Error),
    /// The directory of blobs cannot be used.
    #[error("cannot use {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The store failed.
    #[error("the blob store failed")]
    Store(#[from] object_store::Error),
}

impl Blobs {
    /// Blobs below `<home>/blobs`, made if missing.
    ///
    /// # Errors
    /// When the directory cannot be made or opened.
    pub fn open(home: &Path) -> Result<Self, BlobError> {
        let path = home.join("blobs");
        std::fs::create_dir_all(&path).map_err(|source| BlobError::Directory {
            path: path.clone(),
            source,
        })?;
        let store = LocalFileSystem::new_with_prefix(&path)?.with_fsync(true);
        Ok(Self {
            store: Arc::new(store),
            local: Some(path),
        })
    }

    /// Blobs in any object store.
    #[must_use]
    pub fn over(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, local: None }
    }

    /// Stores all bytes of `chunks` and gives them their name. Storing what
    /// is already there is not an error and keeps the one that is there.
    ///
    /// # Errors
    /// When the source or the store fails; nothing is then stored.
    pub async fn put<S>(&self, mut chunks: S) -> Result<BlobInfo, BlobError>
    where
        S: Stream<Item = io::Result<Bytes>> + Unpin + Send,
    {
        let name = random_name().map_err(BlobError::Source)?;
        let incoming = ObjectPath::from_iter([INCOMING, name.as_str()]);
        let upload = self.store.put_multipart(&incoming).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut hasher = Hasher::new();
        let mut bytes = 0_u64;
        let fed = loop {
            match chunks.next().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(BlobError::Source(error)),
                Some(Ok(chunk)) => {
                    hasher.update(&chunk);
                    bytes += chunk.len() as u64;
                    upload.put(chunk);
                    if let Err(error) = upload.wait_for_capacity(PARTS_IN_FLIGHT).await {
                        break Err(error.into());
                    }
                }
            }
        };
        if let Err(error) = fed {
            // The reason of the failure matters more than a failed clean-up;
            // `sweep` removes what stays.
            let _ = upload.abort().await;
            return Err(error);
        }
        upload.finish().await?;
        let digest = hasher.finish();
        reach(StateWrite::Blob.name(), Moment::Before);
        let renamed = self
            .store
            .rename_if_not_exists(&incoming, &finished(&digest))
            .await;
        reach(StateWrite::Blob.name(), Moment::After);
        match renamed {
            Ok(()) => {}
            Err(object_store::Error::AlreadyExists { .. }) => self.store.delete(&incoming).await?,
            Err(error) => {
                let _ = self.store.delete(&incoming).await;
                return Err(error.into());
            }
        }
        Ok(BlobInfo { digest, bytes })
    }

    /// The bytes of a blob. The stream ends with [`BlobError::Damaged`] when
    /// they are not what the name says: use nothing before it has ended well.
    ///
    /// # Errors
    /// When the blob is missing or the store fails.
    pub async fn get(
        &self,
        digest: &Digest,
    ) -> Result<impl Stream<Item = Result<Bytes, BlobError>> + Send + Unpin + 'static, BlobError>
    {
        let found = self
            .store
            .get(&finished(digest))
            .await
            .map_err(|error| missing(error, digest))?;
        let state = (found.into_stream(), Hasher::new(), digest.clone());
        let verified = stream::try_unfold(state, |(mut inner, mut hasher, expected)| async move {
            if let Some(chunk) = inner.next().await {
                let chunk = chunk?;
                hasher.update(&chunk);
                return Ok(Some((chunk, (inner, hasher, expected))));
            }
            let found = hasher.finish();
            if found == expected {
                Ok(None)
            } else {
                Err(BlobError::Damaged { expected, found })
            }
        });
        Ok(verified.boxed())
    }

    /// Whether the blob is there.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn exists(&self, digest: &Digest) -> Result<bool, BlobError> {
        match self.store.head(&finished(digest)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a blob; removing one that is not there is not an error.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn delete(&self, digest: &Digest) -> Result<(), BlobError> {
        match self.store.delete(&finished(digest)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// All blobs, in no order.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self) -> Result<Vec<BlobInfo>, BlobError> {
        let prefix = ObjectPath::from(FINISHED);
        let found = self
            .store
            .list(Some(&prefix))
            .try_filter_map(|object| async move {
                let digest = object
                    .location
                    .filename()
                    .and_then(|hex| format!("sha256:{hex}").parse().ok());
                Ok(digest.map(|digest| BlobInfo {
                    digest,
                    bytes: object.size,
                }))
            });
        Ok(found.try_collect().await?)
    }

    /// Removes uploads that nobody has touched for `age`: their writer was
    /// killed. Returns how many.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn sweep(&self, age: Duration) -> Result<usize, BlobError> {
        let limit = SystemTime::now() - age;
        let mut removed = 0;
        let prefix = ObjectPath::from(INCOMING);
        let stale: Vec<_> = self
            .store
            .list(Some(&prefix))
            .try_filter(|object| std::future::ready(SystemTime::from(object.last_modified) < limit))
            .try_collect()
            .await?;
        for object in stale {
            self.store.delete(&object.location).await?;
            removed += 1;
        }
        // Uploads that never finished are hidden from listing by the local store.
        if let Some(local) = &self.local {
            removed += sweep_directory(&local.join(INCOMING), limit)?;
        }
        Ok(removed)
    }
}

fn sweep_directory(path: &Path, limit: SystemTime) -> Result<usize, BlobError> {
    let failed = |source| BlobError::Directory {
        path: path.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(error)),
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let stale = entry
            .metadata()
            .and_then(|data| data.modified())
            .is_ok_and(|time| time < limit);
        if stale && std::fs::remove_file(entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

/// A name no other writer takes.
fn random_name() -> io::Result<String> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("put-{}", Digest::of(&random).hex()))
}

fn finished(digest: &Digest) -> ObjectPath {
    ObjectPath::from_iter([FINISHED, digest.hex()])
}

fn missing(error: object_store::Error, digest: &Digest) -> BlobError {
    if matches!(error, object_store::Error::NotFound { .. }) {
        BlobError::Missing(digest.clone())
    } else {
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(
        parts: Vec<io::Result<Bytes>>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Unpin + Send {
        stream::iter(parts)
    }

    fn files(path: &Path) -> usize {
        std::fs::read_dir(path).map_or(0, Iterator::count)
    }

    #[tokio::test]
    async fn stores_reads_lists_and_deletes() {
        let home = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(home.path()).unwrap();
        let big = Bytes::from(vec![7_u8; PART_BYTES + 5]);
        for _ in 0..2 {
            let info = blobs
                .put(chunks(vec![
                    Ok(big.clone()),
                    Ok(Bytes::from_static(b"end")),
                ]))
                .await
                .unwrap();
            assert_eq!(info.bytes, big.len() as u64 + 3);
            assert_eq!(blobs.list().await.unwrap(), vec![info.clone()]);
            let read: Vec<Bytes> = blobs
                .get(&info.digest)
                .await
                .unwrap()
                .try_collect()
                .await
                .unwrap();
            assert_eq!(Digest::of(&read.concat()), info.digest);
        }
        assert_eq!(files(&home.path().join("blobs/incoming")), 0);
        let digest = blobs.list().await.unwrap().remove(0).digest;
        blobs.delete(&digest).await.unwrap();
        blobs.delete(&digest).await.unwrap();
        assert!(!blobs.exists(&digest).await.unwrap());
        assert!(matches!(
            blobs.get(&digest).await.err(),
            Some(BlobError::Missing(_))
        ));
    }

    #[tokio::test]
    async fn a_failing_source_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(home.path()).unwrap();
        let result = blobs
            .put(chunks(vec![
                Ok(Bytes::from_static(b"half")),
                Err(io::Error::other("cut")),
            ]))
            .await;
        assert!(matches!(result, Err(BlobError::Source(_))));
        assert_eq!(blobs.list().await.unwrap(), vec![]);
        assert_eq!(files(&home.path().join("blobs/incoming")), 0);
    }

    #[tokio::test]
    async fn damage_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(home.path()).unwrap();
        let info = blobs
            .put(chunks(vec![Ok(Bytes::from_static(b"good"))]))
            .await
            .unwrap();
        std::fs::write(
            home.path().join("blobs/sha256").join(info.digest.hex()),
            b"evil",
        )
        .unwrap();
        let read: Result<Vec<Bytes>, _> =
            blobs.get(&info.digest).await.unwrap().try_collect().await;
        assert!(matches!(read, Err(BlobError::Damaged { .. })));
    }

    #[tokio::test]
    async fn uploads_of_killed_writers_are_swept() {
        let home = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(home.path()).unwrap();
        let incoming = home.path().join("blobs/incoming");
        std::fs::create_dir_all(&incoming).unwrap();
        std::fs::write(incoming.join("put-dead#1"), b"half").unwrap();
        assert_eq!(blobs.sweep(Duration::from_secs(3600)).await.unwrap(), 0);
        assert_eq!(blobs.sweep(Duration::ZERO).await.unwrap(), 1);
        assert_eq!(files(&incoming), 0);
    }
}
