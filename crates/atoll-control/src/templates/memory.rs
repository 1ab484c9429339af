//! The memory of snapshots and forks: directories below `<home>/memory`, each with a lock beside
//! it that is held by whoever writes or reads what is in it.
//!
//! What no snapshot has that anybody finds, and nobody holds, is removed: what a killed server
//! left, what was deleted, and that of forks, once all of them have begun.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::lock::Lock;
use super::{CatalogError, TemplateCatalog, TemplateId, TemplateMemory};

/// What the name of a lock ends with.
const LOCK: &str = "lock";

/// Keeps memory where it is until dropped.
#[derive(Debug)]
pub struct MemoryHeld {
    _lock: Lock,
}

impl TemplateCatalog {
    /// A name for the memory of a sandbox that is about to be written.
    ///
    /// # Errors
    /// When its directory or its lock cannot be made.
    pub async fn place_for_memory(&self) -> Result<(PathBuf, MemoryHeld), CatalogError> {
        let directory = self.memory_directory();
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory);
        match made.and_then(|()| TemplateId::random()) {
            Ok(id) => {
                let place = directory.join(id.as_str());
                let held = hold(&place).await?;
                Ok((place, held))
            }
            Err(source) => Err(CatalogError::File {
                path: directory,
                source,
            }),
        }
    }

    /// Keeps `memory` until what begins with it has read it. It may be gone already.
    ///
    /// # Errors
    /// When its lock cannot be taken.
    pub async fn hold_memory(&self, memory: &TemplateMemory) -> Result<MemoryHeld, CatalogError> {
        hold(memory.image.directory()).await
    }

    /// Removes memory that nobody finds and nobody holds.
    pub(super) fn sweep_memory(&self) -> Result<(), CatalogError> {
        let mut found = self.all_memory()?;
        if found.is_empty() {
            return Ok(());
        }
        let known = self.known_memory()?;
        found.retain(|place, _| !known.contains(place));
        let mut locked = Vec::new();
        for (place, entries) in found {
            let path = lock_of(&place);
            let lock = Lock::try_exclusive(&path);
            let lock = lock.map_err(|source| CatalogError::File { path, source })?;
            locked.extend(lock.map(|lock| (place, entries, lock)));
        }
        // Who wrote some of it may have let go since, with a record.
        let known = self.known_memory()?;
        for (place, entries, _lock) in locked {
            if known.contains(&place) {
                continue;
            }
            let path = lock_of(&place);
            let mut directories = entries.iter().filter(|entry| **entry != path);
            let removed = directories
                .try_for_each(|entry| absent(fs::remove_dir_all(entry)))
                // Whoever waits for it still finds nothing to begin with.
                .and_then(|()| absent(fs::remove_file(&path)));
            removed.map_err(|source| CatalogError::File { path, source })?;
        }
        Ok(())
    }

    /// Places of memory, each with what is there of it.
    fn all_memory(&self) -> Result<BTreeMap<PathBuf, Vec<PathBuf>>, CatalogError> {
        let directory = self.memory_directory();
        let failed = |source| CatalogError::File {
            path: directory.clone(),
            source,
        };
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            places
                .entry(path.with_extension(""))
                .or_default()
                .push(path);
        }
        Ok(places)
    }

    /// Places of what snapshots have that are not retired.
    fn known_memory(&self) -> Result<BTreeSet<PathBuf>, CatalogError> {
        let directory = self.memory_directory();
        let snapshots = self.snapshots()?.into_iter().filter(|one| !one.is_retired);
        let memory = snapshots.filter_map(|one| one.template.memory);
        Ok(memory
            .filter_map(|memory| Some(directory.join(memory.image.directory().file_name()?)))
            .collect())
    }

    fn memory_directory(&self) -> PathBuf {
        self.directory().with_file_name("memory")
    }
}

async fn hold(place: &Path) -> Result<MemoryHeld, CatalogError> {
    let path = lock_of(place);
    match Lock::shared(&path).await {
        Ok(lock) => Ok(MemoryHeld { _lock: lock }),
        Err(source) => Err(CatalogError::File { path, source }),
    }
}

fn lock_of(place: &Path) -> PathBuf {
    place.with_extension(LOCK)
}

/// What was removed, or is not there.
fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[tokio::test]
    async fn what_nobody_finds_goes_once_nobody_holds_it_whoever_uses_layers() {
        let home = tempfile::tempdir().unwrap();
        let catalog = TemplateCatalog::open(home.path()).unwrap();
        let (place, held) = catalog.place_for_memory().await.unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("pages.img"), "pages").unwrap();
        // As a killed monitor leaves it.
        fs::create_dir(place.with_extension("draft")).unwrap();
        // Somebody always creates something.
        let _layers = catalog.hold_layers().await.unwrap();

        catalog.sweep_memory().unwrap();
        assert!(place.join("pages.img").is_file());
        drop(held);
        catalog.sweep_memory().unwrap();
        let left = fs::read_dir(catalog.memory_directory()).unwrap();
        assert_eq!(left.count(), 0);
    }

    #[tokio::test]
    async fn what_was_never_written_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let catalog = TemplateCatalog::open(home.path()).unwrap();
        let (place, held) = catalog.place_for_memory().await.unwrap();
        drop(held);
        assert!(lock_of(&place).is_file());
        catalog.sweep_memory().unwrap();
        assert!(!lock_of(&place).exists());
    }
}
