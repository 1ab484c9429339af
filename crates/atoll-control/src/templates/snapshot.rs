//! Snapshots: templates whose top layer is what a sandbox had changed, or that begin with its
//! memory.
//!
//! Each is one record below `<home>/snapshots`, written when its layer is there
//! and before anybody is told of it. What was deleted or replaced is **retired**:
//! nobody finds it any more, and its record stays until no sandbox stands on its
//! layers, so that they are freed then and not forgotten. Memory (`memory.rs`) is needed only
//! while a sandbox starts, and goes as soon as its snapshot is retired.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use atoll_store::{StateWrite, write_atomically};
use serde::{Deserialize, Serialize};

use super::{CatalogError, InUse, Template, TemplateCatalog, TemplateId, TemplateName};

/// The files of a sandbox at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Names this one and no other.
    pub build: TemplateId,
    /// What sandboxes of it are made from. Snapshots of one name share its id.
    pub template: Template,
    /// What its owner calls it.
    pub name: Option<TemplateName>,
    /// Which of those of its name.
    pub tag: String,
    /// To whom it belongs.
    pub tenant: String,
    /// The sandbox it was taken of.
    pub sandbox: String,
    /// Whether nobody finds it any more.
    #[serde(default)]
    pub is_retired: bool,
}

impl TemplateCatalog {
    /// All snapshots of this home, the newest first, retired ones too.
    ///
    /// # Errors
    /// When the directory or a record cannot be read.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, CatalogError> {
        let directory = self.snapshot_directory();
        let failed = |source| CatalogError::File {
            path: directory.clone(),
            source,
        };
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut snapshots: Vec<Snapshot> = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|kind| kind != "json") {
                continue;
            }
            match fs::read(&path) {
                Ok(bytes) => snapshots.push(
                    serde_json::from_slice(&bytes)
                        .map_err(|source| CatalogError::Record { path, source })?,
                ),
                // Swept since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(CatalogError::File { path, source }),
            }
        }
        snapshots.sort_by(|left, right| {
            let key = |one: &Snapshot| (one.template.created_at_ms, one.build.clone());
            key(right).cmp(&key(left))
        });
        Ok(snapshots)
    }

    /// Stores a snapshot in place of the one of its build.
    ///
    /// # Errors
    /// When the file system refuses; the previous record is then untouched.
    pub fn save_snapshot(&self, snapshot: &Snapshot) -> Result<(), CatalogError> {
        let directory = self.snapshot_directory();
        let path = self.snapshot_path(snapshot);
        let json = serde_json::to_vec_pretty(snapshot).map_err(|source| CatalogError::Record {
            path: path.clone(),
            source,
        })?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .and_then(|()| write_atomically(StateWrite::SnapshotRecord, &path, &json))
            .map_err(|source| CatalogError::File { path, source })
    }

    /// Removes layers of retired snapshots on which nothing stands any more, and
    /// then their records. Returns how many snapshots are gone for good.
    ///
    /// # Errors
    /// [`CatalogError::Busy`] while sandboxes start or templates are built.
    pub async fn sweep_snapshots(&self, in_use: InUse<'_>) -> Result<usize, CatalogError> {
        // First, because this waits for nobody who only uses layers.
        self.sweep_memory()?;
        let is_retired = |snapshot: &Snapshot| snapshot.is_retired;
        if !self.snapshots()?.iter().any(is_retired) {
            return Ok(0);
        }
        let _lock = self.lock_against_builds()?;
        let in_use = &in_use().map_err(CatalogError::InUse)?;
        // What templates and other snapshots keep anyway says nothing of this one's use.
        let others = self.kept(&BTreeSet::new())?;
        let mut gone = 0;
        for snapshot in self.snapshots()?.into_iter().filter(is_retired) {
            let layers = snapshot.template.layers.iter();
            let own: Vec<_> = layers.filter(|layer| !others.contains(*layer)).collect();
            for layer in own.iter().filter(|layer| !in_use.contains(**layer)) {
                self.layers().remove(layer).await?;
            }
            if !own.iter().any(|layer| in_use.contains(*layer)) {
                let path = self.snapshot_path(&snapshot);
                fs::remove_file(&path).map_err(|source| CatalogError::File { path, source })?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    pub(super) fn snapshot_directory(&self) -> PathBuf {
        self.directory().with_file_name("snapshots")
    }

    fn snapshot_path(&self, snapshot: &Snapshot) -> PathBuf {
        let name = format!("{}.json", snapshot.build);
        self.snapshot_directory().join(name)
    }
}
