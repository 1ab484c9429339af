//! What a build does for its source and for each step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use atoll_store::{Digest, LayerError, LayerInfo, no_progress};
use serde::Serialize;
use tokio::sync::mpsc;

use super::{BuildError, BuildOptions, Builder, CacheUse, State};
use crate::templates::cache::Key;
use crate::templates::context::{self, Selection};
use crate::templates::reporter::Reporter;
use crate::templates::source::{SourceEvent, debian, host};
use crate::templates::workshop::{Job, Task};
use crate::templates::{BuildEvent, Source, SourceError, Step, TemplateSpec, WorkshopError};

impl State {
    fn push(&mut self, layer: &LayerInfo) {
        self.layers.push(layer.digest.clone());
        self.bytes += layer.bytes;
    }
}

impl Builder {
    /// Step 0: the files the template starts from.
    pub(super) async fn source(
        &self,
        spec: &TemplateSpec,
        options: &BuildOptions,
        state: &mut State,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        let layers = self.catalog.layers();
        let (sender, receiver) = mpsc::unbounded_channel();
        match &spec.from {
            Source::Template(_) => Ok(()),
            Source::Debian(debian) => {
                let plan = debian::Plan::of(debian)?;
                let work = plan.run(layers, sender);
                self.first_layer(
                    "packages of Debian",
                    &plan.key(),
                    options,
                    state,
                    reporter,
                    (work, receiver),
                )
                .await
            }
            Source::Host => {
                let plan = host::Plan::new()?;
                let scratch = self.home.join("build-scratch");
                let work = plan.run(layers, &scratch, sender);
                self.first_layer(
                    "packages of this host",
                    &plan,
                    options,
                    state,
                    reporter,
                    (work, receiver),
                )
                .await
            }
        }
    }

    async fn first_layer(
        &self,
        text: &str,
        plan: &impl Serialize,
        options: &BuildOptions,
        state: &mut State,
        reporter: &mut Reporter<'_>,
        (work, receiver): (
            impl Future<Output = Result<LayerInfo, SourceError>>,
            mpsc::UnboundedReceiver<SourceEvent>,
        ),
    ) -> Result<(), BuildError> {
        let begun = Instant::now();
        reporter.begin(0, text);
        let key = self.key(&Key::new(&[], plan, None, ("", "", &BTreeMap::new())))?;
        if let Some(layer) = self.cached(&key, options).await {
            reporter.cached();
            state.push(&layer);
            return Ok(());
        }
        let layer = relayed(work, receiver, reporter).await?;
        self.finish((0, text), &key, &layer, begun, reporter)?;
        state.push(&layer);
        Ok(())
    }

    /// One step after the source.
    pub(super) async fn step(
        &self,
        (number, step): (usize, &Step),
        spec: &TemplateSpec,
        options: &BuildOptions,
        state: &mut State,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        let begun = Instant::now();
        let text = step.to_string();
        reporter.begin(number, &text);
        let selection = select(number, step, spec)?;
        let (task, user) = match (step, &selection) {
            (Step::Env(variables), _) => {
                state.env.extend(variables.clone());
                reporter.event(BuildEvent::Done {
                    number,
                    layer: None,
                    bytes: 0,
                    elapsed: begun.elapsed(),
                });
                return Ok(());
            }
            (Step::User(name), _) => {
                state.user.clone_from(name);
                reporter.event(BuildEvent::Done {
                    number,
                    layer: None,
                    bytes: 0,
                    elapsed: begun.elapsed(),
                });
                return Ok(());
            }
            (Step::Workdir(directory), _) => {
                state.workdir.clone_from(directory);
                (Task::MakeWorkdir, None)
            }
            (Step::Run { command, user }, _) => (Task::Run(command), user.clone()),
            (Step::Copy { to, user, .. }, Some(selection)) => {
                (Task::Copy { selection, to }, user.clone())
            }
            // `select` gives a selection for every copy.
            (Step::Copy { .. }, None) => return Ok(()),
        };
        let user = user.unwrap_or_else(|| state.user.clone());
        let content = selection.as_ref().map(|selection| &selection.digest);
        let key = self.key(&Key::new(
            &state.layers,
            step,
            content,
            (&user, &state.workdir, &state.env),
        ))?;
        if let Some(layer) = self.cached(&key, options).await {
            reporter.cached();
            state.push(&layer);
            return Ok(());
        }
        let mut env = state.env.clone();
        env.extend(options.build_env.clone());
        let job = Job {
            layers: self.trees(&state.layers).await?,
            task,
            user: &user,
            workdir: &state.workdir,
            env,
        };
        let performed = self
            .workshop
            .perform(job, &mut |stream, bytes| reporter.output(stream, bytes))
            .await;
        let performed = performed.map_err(|error| step_error(number, &text, error, reporter))?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let progress = Arc::new(move |bytes| {
            // Nobody listens any more: the build was given up.
            let _ = sender.send(SourceEvent::Stored(bytes));
        });
        let work = self
            .catalog
            .layers()
            .import_tree(&performed.directory, progress);
        let imported = relayed(work, receiver, reporter).await;
        let discarded = performed.discard.await;
        let layer = imported?;
        if let Err(error) = discarded {
            // The layer is whole; what is left of the sandbox goes at the next start.
            reporter.warn(format!(
                "the sandbox of step {number} was not removed: {error}"
            ));
        }
        self.finish((number, &text), &key, &layer, begun, reporter)?;
        state.push(&layer);
        Ok(())
    }

    fn key(&self, key: &Key<'_, impl Serialize>) -> Result<Digest, BuildError> {
        key.digest().map_err(|source| BuildError::File {
            path: self.home.join("build-cache"),
            source,
        })
    }

    /// The layer of an earlier build, made again from its blob if need be.
    /// One that cannot be had is as good as none.
    async fn cached(&self, key: &Digest, options: &BuildOptions) -> Option<LayerInfo> {
        if options.cache == CacheUse::Ignore {
            return None;
        }
        let layer = self.cache.get(key, self.catalog.layers())?;
        match self
            .catalog
            .layers()
            .ensure(&layer.digest, no_progress())
            .await
        {
            Ok(_) => Some(layer),
            Err(error) => {
                tracing::warn!(layer = %layer.digest, %error, "a cached layer cannot be used");
                None
            }
        }
    }

    /// Trees of the layers, the top one first.
    async fn trees(&self, layers: &[Digest]) -> Result<Vec<PathBuf>, LayerError> {
        let mut trees = Vec::with_capacity(layers.len());
        for layer in layers.iter().rev() {
            trees.push(self.catalog.layers().ensure(layer, no_progress()).await?);
        }
        Ok(trees)
    }

    fn finish(
        &self,
        (number, text): (usize, &str),
        key: &Digest,
        layer: &LayerInfo,
        begun: Instant,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        self.cache
            .put(key, &layer.digest, text)
            .map_err(|source| BuildError::File {
                path: self.home.join("build-cache"),
                source,
            })?;
        let (bytes, elapsed) = (layer.bytes, begun.elapsed());
        reporter.event(BuildEvent::Done {
            number,
            layer: Some(layer.digest.clone()),
            bytes,
            elapsed,
        });
        Ok(())
    }
}

/// The files of a copy step.
pub(super) fn select(
    number: usize,
    step: &Step,
    spec: &TemplateSpec,
) -> Result<Option<Selection>, BuildError> {
    let Step::Copy { from, .. } = step else {
        return Ok(None);
    };
    context::select(spec.context.as_deref(), from)
        .map(Some)
        .map_err(|source| BuildError::Context {
            number,
            text: step.to_string(),
            source,
        })
}

/// Waits for `work` and passes on what it says meanwhile.
async fn relayed<T>(
    work: impl Future<Output = T>,
    mut receiver: mpsc::UnboundedReceiver<SourceEvent>,
    reporter: &mut Reporter<'_>,
) -> T {
    let mut work = std::pin::pin!(work);
    let result = loop {
        tokio::select! {
            biased;
            Some(event) = receiver.recv() => reporter.source(event),
            result = &mut work => break result,
        }
    };
    while let Ok(event) = receiver.try_recv() {
        reporter.source(event);
    }
    result
}

fn step_error(
    number: usize,
    text: &str,
    error: WorkshopError,
    reporter: &Reporter<'_>,
) -> BuildError {
    let text = text.to_owned();
    match error {
        WorkshopError::Ended(outcome) => BuildError::Step {
            number,
            text,
            exit: outcome.to_string(),
            lines: reporter.last_lines(),
            log: reporter.log_path().to_owned(),
        },
        source => BuildError::Workshop {
            number,
            text,
            source,
        },
    }
}
