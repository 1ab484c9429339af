//! The templates of one home, one JSON file each.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_store::{Digest, LayerError, Layers, StateWrite, sweep_unfinished, write_atomically};

use super::lock::Lock;
use super::{Template, TemplateName};

/// The templates below `<home>/templates`.
#[derive(Debug, Clone)]
pub struct TemplateCatalog {
    directory: PathBuf,
    layers: Layers,
}

/// Why the catalog could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// It cannot be told which layers sandboxes use.
    #[error("cannot tell which layers are in use")]
    InUse(#[source] io::Error),
    /// There is no such template.
    #[error("there is no template `{0}`")]
    Missing(TemplateName),
    /// A build could lose its layers.
    #[error("a template is being built in this home; try again when that is done")]
    Busy,
    /// A record is not what this version writes.
    #[error("{path} is not a template record")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A file could not be read or written.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A layer could not be found, made or removed.
    #[error("cannot use the layers of the template")]
    Layers(#[from] LayerError),
}

/// The trees of a template's layers in the home, the top one first; those
/// that are missing are made from their blobs.
///
/// # Errors
/// When the home cannot be used or a layer is neither there nor in the blobs.
pub async fn layer_directories(
    home: &Path,
    template: &Template,
) -> Result<Vec<PathBuf>, CatalogError> {
    TemplateCatalog::open(home)?
        .layer_directories(template)
        .await
}

/// Layers that sandboxes stand on. Asked under the lock that starting
/// sandboxes hold too, so that none can appear in between. The future that
/// asks may move between threads.
pub type InUse<'question> = &'question (dyn Fn() -> io::Result<BTreeSet<Digest>> + Sync);

/// Layers that running sandboxes of this host stand on.
///
/// # Errors
/// When the leases cannot be read.
pub fn layers_in_use() -> io::Result<BTreeSet<Digest>> {
    let paths = atoll_engine::layers_in_use()?;
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    Ok(names.filter_map(Digest::from_file_name).collect())
}

/// While it lives, no layer of its home is removed.
#[derive(Debug)]
pub struct LayersHeld {
    _lock: Lock,
}

impl TemplateCatalog {
    /// The catalog of a home, made if missing.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn open(home: &Path) -> Result<Self, CatalogError> {
        let directory = home.join("templates");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|source| CatalogError::File {
                path: directory.clone(),
                source,
            })?;
        let blobs = atoll_store::Blobs::open(home).map_err(LayerError::from)?;
        Ok(Self {
            directory,
            layers: Layers::open(home, blobs)?,
        })
    }

    /// The layers the templates are made of.
    #[must_use]
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// All templates by name.
    ///
    /// # Errors
    /// When the directory or a record cannot be read.
    pub fn list(&self) -> Result<Vec<Template>, CatalogError> {
        let failed = |source| CatalogError::File {
            path: self.directory.clone(),
            source,
        };
        let mut templates = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name
                .to_str()
                .and_then(|name| name.strip_suffix(".json"))
                .and_then(|name| name.parse().ok());
            if let Some(name) = name {
                templates.extend(self.get(&name)?);
            }
        }
        templates.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(templates)
    }

    /// One template; `None` when there is none of that name.
    ///
    /// # Errors
    /// When its record cannot be read.
    pub fn get(&self, name: &TemplateName) -> Result<Option<Template>, CatalogError> {
        let path = self.record_path(name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| CatalogError::Record { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CatalogError::File { path, source }),
        }
    }

    /// Stores a template in place of the one of its name.
    ///
    /// # Errors
    /// When the file system refuses; the previous record is then untouched.
    pub fn save(&self, template: &Template) -> Result<(), CatalogError> {
        let path = self.record_path(&template.name);
        let json = serde_json::to_vec_pretty(template).map_err(|source| CatalogError::Record {
            path: path.clone(),
            source,
        })?;
        write_atomically(StateWrite::TemplateRecord, &path, &json)
            .map_err(|source| CatalogError::File { path, source })
    }

    /// Removes a template and those of its layers and blobs that no other
    /// template has and that are not `in_use` by a sandbox. Layers kept for a
    /// sandbox go with the next [`TemplateCatalog::collect_garbage`].
    ///
    /// # Errors
    /// When there is none of that name, a build is under way, or a file could
    /// not be removed.
    pub async fn remove(
        &self,
        name: &TemplateName,
        in_use: InUse<'_>,
    ) -> Result<Template, CatalogError> {
        let _lock = self.lock_against_builds()?;
        let in_use = &in_use().map_err(CatalogError::InUse)?;
        let template = self
            .get(name)?
            .ok_or_else(|| CatalogError::Missing(name.clone()))?;
        let path = self.record_path(name);
        fs::remove_file(&path).map_err(|source| CatalogError::File { path, source })?;
        let kept = self.kept(in_use)?;
        for layer in template
            .layers
            .iter()
            .filter(|layer| !kept.contains(*layer))
        {
            self.layers.remove(layer).await?;
        }
        Ok(template)
    }

    /// Removes every layer that no template has and no sandbox uses, also
    /// those that only the build cache knows. Returns them.
    ///
    /// # Errors
    /// When a build is under way or a file could not be removed.
    pub async fn collect_garbage(&self, in_use: InUse<'_>) -> Result<Vec<Digest>, CatalogError> {
        let _lock = self.lock_against_builds()?;
        let in_use = &in_use().map_err(CatalogError::InUse)?;
        self.layers.sweep_alone().await?;
        let garbage = self.garbage(in_use)?;
        for layer in &garbage {
            self.layers.remove(layer).await?;
        }
        Ok(garbage)
    }

    /// Layers that no template has and no sandbox uses.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn garbage(&self, in_use: &BTreeSet<Digest>) -> Result<Vec<Digest>, CatalogError> {
        let kept = self.kept(in_use)?;
        Ok(self
            .layers
            .list()?
            .into_iter()
            .filter(|layer| !kept.contains(layer))
            .collect())
    }

    /// Makes the trees of a template's layers where they are missing, and
    /// returns them top first, as `SandboxSpec::layers` wants them.
    ///
    /// # Errors
    /// When a layer is neither there nor in the blobs.
    pub async fn layer_directories(
        &self,
        template: &Template,
    ) -> Result<Vec<PathBuf>, CatalogError> {
        let mut paths = Vec::with_capacity(template.layers.len());
        for layer in &template.layers {
            paths.push(
                self.layers
                    .ensure(layer, atoll_store::no_progress())
                    .await?,
            );
        }
        Ok(paths)
    }

    /// Keeps every layer of this home where it is until dropped. Hold it from
    /// the choice of a template until the sandbox on it has its lease.
    ///
    /// # Errors
    /// When the lock file cannot be opened.
    pub async fn hold_layers(&self) -> Result<LayersHeld, CatalogError> {
        let path = self.shared_lock_path();
        match Lock::shared(&path).await {
            Ok(lock) => Ok(LayersHeld { _lock: lock }),
            Err(source) => Err(CatalogError::File { path, source }),
        }
    }

    /// Removes what killed builds left, unless a build or a start is under way:
    /// then the next one does it.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub async fn sweep(&self) -> Result<usize, CatalogError> {
        let _lock = match self.lock_against_builds() {
            Err(CatalogError::Busy) => return Ok(0),
            other => other?,
        };
        let mut removed = self.layers.sweep_alone().await?;
        let cache = self.directory.with_file_name("build-cache");
        for directory in [&self.directory, &cache, &self.snapshot_directory()] {
            let failed = |source| CatalogError::File {
                path: directory.clone(),
                source,
            };
            removed += sweep_unfinished(directory).map_err(failed)?;
        }
        Ok(removed)
    }

    /// The lock that one build of `name` holds.
    pub(super) fn build_lock_path(&self, name: &TemplateName) -> PathBuf {
        self.directory.join(format!(".{name}.lock"))
    }

    /// The lock that builds and starting sandboxes share and removals want alone.
    pub(super) fn shared_lock_path(&self) -> PathBuf {
        self.directory.join(".builds")
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn lock_against_builds(&self) -> Result<Lock, CatalogError> {
        let path = self.shared_lock_path();
        match Lock::try_exclusive(&path) {
            Ok(lock) => lock.ok_or(CatalogError::Busy),
            Err(source) => Err(CatalogError::File { path, source }),
        }
    }

    pub(super) fn kept(&self, in_use: &BTreeSet<Digest>) -> Result<BTreeSet<Digest>, CatalogError> {
        let mut kept = in_use.clone();
        for template in self.list()? {
            kept.extend(template.layers);
        }
        for snapshot in self.snapshots()? {
            if !snapshot.is_retired {
                kept.extend(snapshot.template.layers);
            }
        }
        Ok(kept)
    }

    fn record_path(&self, name: &TemplateName) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }
}
