//! The step builder: a spec becomes a template, one cached layer per step.
//!
//! ```text
//! lock(name) ─▶ source ─▶ [cache?] ─▶ layer
//!           └▶ each step ─▶ [cache?] ─▶ sandbox ─▶ changes ─▶ layer
//!                └▶ record in the catalog
//! ```
//! The cache is written after each step, so a build that failed or was killed
//! goes on at the first step that is not done.

mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use atoll_engine::{Limits, Runtime};
use atoll_store::{Digest, LayerError};
use tempfile::TempDir;

use super::build_log::{BuildLog, now_ms};
use super::builtin::{Builtin, builtin_spec, write_builtin_files};
use super::cache::{Cache, Key};
use super::lock::Lock;
use super::reporter::Reporter;
use super::workshop::{SandboxWorkshop, Workshop};
use super::{
    BuildEvent, CatalogError, ContextError, Source, SourceError, SpecError, Template,
    TemplateCatalog, TemplateId, TemplateName, TemplateSpec, WorkshopError,
};

/// Receives what a build reports.
pub type Events<'build> = &'build mut (dyn FnMut(BuildEvent) + Send);

/// Memory, processes and disk of a build's sandboxes; the CPUs are the host's.
const BUILD_MEMORY_MIB: u64 = 4096;
const BUILD_PIDS: u64 = 4096;
const BUILD_DISK_MIB: u64 = 16 * 1024;

/// Whether finished steps of earlier builds are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheUse {
    /// Take what was done before.
    #[default]
    Take,
    /// Do everything anew, the source too.
    Ignore,
}

/// How to build.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Whether finished steps of earlier builds are taken.
    pub cache: CacheUse,
    /// Variables for the commands of the build only: never in the template,
    /// and no part of the cache's key. See [`BuildOptions::with_host_mirrors`].
    pub build_env: BTreeMap<String, String>,
    /// From where a built-in template is built.
    pub builtin: Builtin,
}

impl BuildOptions {
    /// Adds where this host gets packages from, as far as its environment
    /// says so and no user name or password is in it.
    #[must_use]
    pub fn with_host_mirrors(mut self) -> Self {
        let names = [
            "PIP_INDEX_URL",
            "PIP_EXTRA_INDEX_URL",
            "npm_config_registry",
            "http_proxy",
            "https_proxy",
            "no_proxy",
        ];
        for name in names {
            if let Some(value) = std::env::var(name)
                .ok()
                .filter(|value| !value.is_empty() && !value.contains('@'))
            {
                self.build_env.insert(name.to_owned(), value);
            }
        }
        self
    }
}

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The spec is refused.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no built-in template of that name.
    #[error("there is no built-in template `{0}`")]
    NoBuiltin(TemplateName),
    /// It is made of packages that no host has.
    #[error("the template `{0}` can only be built from the network")]
    NeedsNetwork(TemplateName),
    /// The parent is not there.
    #[error("the template `{0}`, from which this one is made, does not exist")]
    NoParent(TemplateName),
    /// The source could not be turned into a layer.
    #[error("cannot make the first layer")]
    Source(#[from] SourceError),
    /// The files of a copy step cannot be taken.
    #[error("step {number} ({text}) cannot copy")]
    Context {
        /// Its number.
        number: usize,
        /// What it does.
        text: String,
        /// Why.
        #[source]
        source: ContextError,
    },
    /// A step failed. Steps before it are kept for the next try.
    #[error("step {number} ({text}) {exit}\n{}\nThe whole output is in {}", lines.join("\n"), log.display())]
    Step {
        /// Its number.
        number: usize,
        /// What it does.
        text: String,
        /// How it ended.
        exit: String,
        /// The end of its output.
        lines: Vec<String>,
        /// The log of the build.
        log: PathBuf,
    },
    /// The sandbox of a step could not be had.
    #[error("step {number} ({text}) could not be run")]
    Workshop {
        /// Its number.
        number: usize,
        /// What it does.
        text: String,
        /// Why.
        #[source]
        source: WorkshopError,
    },
    /// A layer could not be stored or found.
    #[error("cannot store a layer")]
    Layer(#[from] LayerError),
    /// The catalog cannot be used.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A file below the home cannot be used.
    #[error("cannot use {path}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What is in force between two steps.
struct State {
    /// Layers so far, **the bottom one first**.
    layers: Vec<Digest>,
    bytes: u64,
    env: BTreeMap<String, String>,
    user: String,
    workdir: String,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// Builds templates of one home.
pub struct Builder {
    home: PathBuf,
    catalog: TemplateCatalog,
    cache: Cache,
    workshop: Arc<dyn Workshop>,
}

impl Builder {
    /// A builder whose steps run in sandboxes of `runtime`.
    ///
    /// # Errors
    /// When the directories of the home cannot be made.
    pub fn new(home: &Path, runtime: Arc<dyn Runtime>) -> Result<Self, BuildError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        let limits = Limits {
            memory_mib: BUILD_MEMORY_MIB,
            cpu_millis: cores * 1000,
            pids: BUILD_PIDS,
            disk_mib: BUILD_DISK_MIB,
            ..Limits::default()
        };
        Self::with_workshop(home, Arc::new(SandboxWorkshop::new(runtime, limits)))
    }

    pub(super) fn with_workshop(
        home: &Path,
        workshop: Arc<dyn Workshop>,
    ) -> Result<Self, BuildError> {
        let catalog = TemplateCatalog::open(home)?;
        let cache = Cache::open(home).map_err(|source| BuildError::File {
            path: home.join("build-cache"),
            source,
        })?;
        Ok(Self {
            home: home.to_owned(),
            catalog,
            cache,
            workshop,
        })
    }

    /// The templates of the home.
    #[must_use]
    pub fn catalog(&self) -> &TemplateCatalog {
        &self.catalog
    }

    /// The built-in template `name`, built if it is not there. One that is
    /// there is taken as it is, also when it is the user's own of that name.
    ///
    /// # Errors
    /// When there is none of that name or its build fails.
    pub async fn ensure_builtin(
        &self,
        name: &TemplateName,
        options: &BuildOptions,
        events: Events<'_>,
    ) -> Result<Template, BuildError> {
        if let Some(template) = self.catalog.get(name)? {
            return Ok(template);
        }
        self.build_builtin(name, options, events).await
    }

    /// Builds the built-in template `name` as its spec has it, after those
    /// that it is made from and that are not there.
    ///
    /// # Errors
    /// When there is none of that name or a build fails.
    pub async fn build_builtin(
        &self,
        name: &TemplateName,
        options: &BuildOptions,
        events: Events<'_>,
    ) -> Result<Template, BuildError> {
        let mut spec =
            builtin_spec(name, options.builtin).ok_or_else(|| {
                match builtin_spec(name, Builtin::Network) {
                    Some(_) => BuildError::NeedsNetwork(name.clone()),
                    None => BuildError::NoBuiltin(name.clone()),
                }
            })??;
        // Held until the build is done.
        let (_files, context) = builtin_files()?;
        spec.context = Some(context);
        let mut parents: Vec<TemplateSpec> = Vec::new();
        while let Source::Template(parent) = &parents.last().unwrap_or(&spec).from {
            if self.catalog.get(parent)?.is_some() {
                break;
            }
            let Some(parent) = builtin_spec(parent, options.builtin) else {
                break;
            };
            parents.push(TemplateSpec {
                context: spec.context.clone(),
                ..parent?
            });
        }
        for parent in parents.iter().rev() {
            self.build(parent, options, events).await?;
        }
        self.build(&spec, options, events).await
    }

    /// Builds a template and stores it in the catalog. A second build of the
    /// same name waits for the first.
    ///
    /// # Errors
    /// When a step fails; what was done before is kept for the next try.
    pub async fn build(
        &self,
        spec: &TemplateSpec,
        options: &BuildOptions,
        events: Events<'_>,
    ) -> Result<Template, BuildError> {
        let begun = Instant::now();
        let locked = |path: PathBuf| move |source| BuildError::File { path, source };
        let path = self.catalog.build_lock_path(&spec.name);
        let waiting = || {
            events(BuildEvent::Waiting {
                name: spec.name.clone(),
            });
        };
        let _alone = Lock::exclusive(&path, waiting)
            .await
            .map_err(locked(path.clone()))?;
        self.catalog.sweep().await?;
        let path = self.catalog.shared_lock_path();
        let _shared = Lock::shared(&path).await.map_err(locked(path.clone()))?;

        let mut state = self.initial_state(spec)?;
        let previous = self.catalog.get(&spec.name)?;
        let spec_hash = self.spec_hash(spec, &state)?;

        let log = BuildLog::create(&self.home, &spec.name).map_err(|source| BuildError::File {
            path: self.home.join("build-logs"),
            source,
        })?;
        let mut reporter = Reporter::new(log, events);
        reporter.event(BuildEvent::Started {
            name: spec.name.clone(),
            steps: spec.steps.len(),
            log: reporter.log_path().to_owned(),
        });
        self.source(spec, options, &mut state, &mut reporter)
            .await?;
        for (index, step) in spec.steps.iter().enumerate() {
            self.step((index + 1, step), spec, options, &mut state, &mut reporter)
                .await?;
        }
        let template = Template {
            name: spec.name.clone(),
            id: match previous {
                Some(previous) => previous.id,
                None => TemplateId::random().map_err(|source| BuildError::File {
                    path: self.home.clone(),
                    source,
                })?,
            },
            layers: state.layers.iter().rev().cloned().collect(),
            env: state.env,
            user: spec.user.clone().unwrap_or(state.user),
            workdir: spec.workdir.clone().unwrap_or(state.workdir),
            start_cmd: spec.start_cmd.clone().or(state.start_cmd),
            ready_cmd: spec.ready_cmd.clone().or(state.ready_cmd),
            resources: spec.resources.clone(),
            created_at_ms: now_ms(),
            spec_hash,
            total_bytes: state.bytes,
            memory: None,
        };
        self.catalog.save(&template)?;
        reporter.event(BuildEvent::Finished {
            name: spec.name.clone(),
            bytes: template.total_bytes,
            elapsed: begun.elapsed(),
        });
        Ok(template)
    }

    /// What is in force before the first step.
    fn initial_state(&self, spec: &TemplateSpec) -> Result<State, BuildError> {
        let mut state = State {
            layers: Vec::new(),
            bytes: 0,
            env: BTreeMap::new(),
            user: "root".to_owned(),
            workdir: "/".to_owned(),
            start_cmd: None,
            ready_cmd: None,
        };
        if let Source::Template(name) = &spec.from {
            let parent = self
                .catalog
                .get(name)?
                .ok_or_else(|| BuildError::NoParent(name.clone()))?;
            state = State {
                layers: parent.layers.into_iter().rev().collect(),
                bytes: parent.total_bytes,
                env: parent.env,
                user: parent.user,
                workdir: parent.workdir,
                start_cmd: parent.start_cmd,
                ready_cmd: parent.ready_cmd,
            };
        }
        state.env.extend(spec.env.clone());
        Ok(state)
    }

    /// Hash of everything the spec says, with the parent's layers and the
    /// content of copied files.
    fn spec_hash(&self, spec: &TemplateSpec, state: &State) -> Result<Digest, BuildError> {
        let mut contents = Vec::new();
        for (index, step) in spec.steps.iter().enumerate() {
            contents
                .extend(steps::select(index + 1, step, spec)?.map(|selection| selection.digest));
        }
        Key::new(
            &state.layers,
            &(spec, contents),
            None,
            (&state.user, &state.workdir, &state.env),
        )
        .digest()
        .map_err(|source| BuildError::File {
            path: self.home.clone(),
            source,
        })
    }
}

/// A directory with what built-in templates copy, and its path without links.
fn builtin_files() -> Result<(TempDir, PathBuf), BuildError> {
    let failed = |source| BuildError::File {
        path: std::env::temp_dir(),
        source,
    };
    let directory = TempDir::new().map_err(failed)?;
    write_builtin_files(directory.path()).map_err(failed)?;
    let path = directory.path().canonicalize().map_err(failed)?;
    Ok((directory, path))
}
