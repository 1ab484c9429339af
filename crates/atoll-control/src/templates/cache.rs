//! What each step made, by everything that went into it.
//!
//! `<home>/build-cache/<hash>.json` names a layer. The layer may be gone
//! (templates are removed with theirs); then the entry counts for nothing.
//! A build that failed or was killed finds its finished steps here.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use atoll_store::{Digest, LayerInfo, Layers, StateWrite, write_atomically};
use serde::{Deserialize, Serialize};

/// Changed when the same step would give other files than before.
const BUILDER_VERSION: u32 = 2;

/// Everything that decides what a step makes.
#[derive(Debug, Serialize)]
pub(crate) struct Key<'build, What> {
    version: u32,
    /// Layers below, the bottom one first.
    parents: &'build [Digest],
    what: &'build What,
    content: Option<&'build Digest>,
    user: &'build str,
    workdir: &'build str,
    env: &'build BTreeMap<String, String>,
}

impl<'build, What: Serialize> Key<'build, What> {
    pub(crate) fn new(
        parents: &'build [Digest],
        what: &'build What,
        content: Option<&'build Digest>,
        (user, workdir, env): (&'build str, &'build str, &'build BTreeMap<String, String>),
    ) -> Self {
        Self {
            version: BUILDER_VERSION,
            parents,
            what,
            content,
            user,
            workdir,
            env,
        }
    }

    pub(crate) fn digest(&self) -> io::Result<Digest> {
        Ok(Digest::of(&serde_json::to_vec(self)?))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    layer: Digest,
    /// For people who look into the directory.
    step: String,
}

/// The cache of one home.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    directory: PathBuf,
}

impl Cache {
    pub(crate) fn open(home: &Path) -> io::Result<Self> {
        let directory = home.join("build-cache");
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    /// The layer a step made before, when it is still there.
    pub(crate) fn get(&self, key: &Digest, layers: &Layers) -> Option<LayerInfo> {
        let bytes = fs::read(self.path(key)).ok()?;
        let entry: Entry = serde_json::from_slice(&bytes).ok()?;
        layers.info(&entry.layer).ok().flatten()
    }

    pub(crate) fn put(&self, key: &Digest, layer: &Digest, step: &str) -> io::Result<()> {
        let entry = Entry {
            layer: layer.clone(),
            step: step.to_owned(),
        };
        write_atomically(
            StateWrite::BuildCacheEntry,
            &self.path(key),
            &serde_json::to_vec_pretty(&entry)?,
        )
    }

    fn path(&self, key: &Digest) -> PathBuf {
        self.directory.join(format!("{}.json", key.hex()))
    }
}
