//! Where steps happen: one sandbox per step, whose changes become a layer.
//!
//! The trait is the seam that lets the builder be tested without a sandbox.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_engine::{
    Attachment, Limits, NetworkPolicy, Outcome, Runtime, Sandbox, SandboxError, SandboxId,
    SandboxSpec,
};
use atoll_guest_client::{Command, ExitStatus, GuestError, InitRequest, LocalFile, ProcessEvent};
use bytes::Bytes;

use super::OutputStream;
use super::context::Selection;
use crate::outcome::{EVIDENCE_BYTES, explain};
use crate::{LiveSandbox, OpenError};

/// Longest time one command of a build may take.
const COMMAND_BOUND: Duration = Duration::from_secs(60 * 60);
/// After that the sandbox ends by itself, whatever happened to the build.
const LIFETIME: Duration = Duration::from_secs(65 * 60);
/// Longest time for making a directory or setting modes.
const CHORE_BOUND: Duration = Duration::from_secs(60);
/// Paths given to one `mkdir` or `chmod`.
const PATHS_AT_ONCE: usize = 200;

/// Something to do in a sandbox.
#[derive(Debug)]
pub(crate) struct Job<'step> {
    /// Layers below, the top one first.
    pub(crate) layers: Vec<PathBuf>,
    pub(crate) task: Task<'step>,
    pub(crate) user: &'step str,
    pub(crate) workdir: &'step str,
    pub(crate) env: BTreeMap<String, String>,
}

#[derive(Debug)]
pub(crate) enum Task<'step> {
    /// A command for `/bin/bash -l -c`.
    Run(&'step str),
    /// Files of the host, to a path inside.
    Copy {
        selection: &'step Selection,
        to: &'step str,
    },
    /// The working directory is made, with the user as its owner.
    MakeWorkdir,
}

/// What a job changed. Must be discarded by the caller.
pub(crate) struct Performed {
    /// The changes over the layers, as a tree.
    pub(crate) directory: PathBuf,
    /// Removes them.
    pub(crate) discard: Boxed<'static, Result<(), WorkshopError>>,
}

/// Receives output while a job runs.
pub(crate) type Output<'step> = &'step mut (dyn FnMut(OutputStream, Bytes) + Send);

pub(crate) type Boxed<'step, T> = Pin<Box<dyn Future<Output = T> + Send + 'step>>;

/// Does jobs.
pub(crate) trait Workshop: Send + Sync {
    fn perform<'step>(
        &'step self,
        job: Job<'step>,
        output: Output<'step>,
    ) -> Boxed<'step, Result<Performed, WorkshopError>>;
}

/// Why a job was not done.
#[derive(Debug, thiserror::Error)]
pub enum WorkshopError {
    /// There is no sandbox to work in.
    #[error("cannot open the sandbox of the step")]
    Open(#[from] OpenError),
    /// The sandbox failed.
    #[error("the sandbox of the step failed")]
    Sandbox(#[from] SandboxError),
    /// The guest failed or refused.
    #[error("the guest of the step failed")]
    Guest(#[from] GuestError),
    /// The command ended without success, or a limit ended it.
    #[error("{0}")]
    Ended(Outcome),
    /// A file of the host cannot be copied.
    #[error("cannot copy {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Does jobs in real sandboxes.
pub(crate) struct SandboxWorkshop {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
}

impl SandboxWorkshop {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, limits: Limits) -> Self {
        Self { runtime, limits }
    }

    async fn open(&self, job: &Job<'_>) -> Result<LiveSandbox, WorkshopError> {
        let id = SandboxId::random().map_err(OpenError::from)?;
        let spec = SandboxSpec {
            id,
            layers: job.layers.clone(),
            limits: self.limits.clone(),
            network: NetworkPolicy::full(),
            hostname: "build".to_owned(),
            env: BTreeMap::new(),
            lifetime: Some(LIFETIME),
            attachment: Attachment::Client,
            memory: None,
        };
        let init = InitRequest {
            env_vars: Some(job.env.clone()),
            default_user: Some("root".to_owned()),
            default_workdir: Some("/".to_owned()),
            ..InitRequest::default()
        };
        Ok(LiveSandbox::open(Arc::clone(&self.runtime), spec, init).await?)
    }

    async fn work(
        &self,
        live: &LiveSandbox,
        job: &Job<'_>,
        output: Output<'_>,
    ) -> Result<(), WorkshopError> {
        match &job.task {
            Task::Run(command) => {
                let command = Command {
                    cmd: "/bin/bash".to_owned(),
                    args: vec!["-l".to_owned(), "-c".to_owned(), (*command).to_owned()],
                    cwd: Some(job.workdir.to_owned()),
                    user: Some(job.user.to_owned()),
                    timeout: Some(COMMAND_BOUND),
                    ..Command::default()
                };
                self.command(live, &command, output).await
            }
            Task::MakeWorkdir => {
                let script =
                    r#"if [ ! -d "$1" ]; then mkdir -p -- "$1" && chown -- "$2:" "$1"; fi"#;
                let arguments = [job.workdir.to_owned(), job.user.to_owned()];
                self.chore(live, script, &arguments, "root", output).await
            }
            Task::Copy { selection, to } => self.copy(live, job, selection, to, output).await,
        }
    }

    async fn copy(
        &self,
        live: &LiveSandbox,
        job: &Job<'_>,
        selection: &Selection,
        to: &str,
        output: Output<'_>,
    ) -> Result<(), WorkshopError> {
        let mut directories = Vec::new();
        let mut modes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        if selection.is_directory {
            directories.push(absolute(job.workdir, to));
        }
        for entry in &selection.entries {
            let target = target(job.workdir, to, selection.is_directory, &entry.name)?;
            if entry.is_directory {
                directories.push(target.clone());
            }
            modes.entry(entry.mode).or_default().push(target);
        }
        for paths in directories.chunks(PATHS_AT_ONCE) {
            self.chore(live, r#"mkdir -p -- "$@""#, paths, job.user, output)
                .await?;
        }
        for entry in selection.entries.iter().filter(|entry| !entry.is_directory) {
            let target = target(job.workdir, to, selection.is_directory, &entry.name)?;
            let file = entry.open().map_err(|source| WorkshopError::File {
                path: entry.path.clone(),
                source,
            })?;
            live.guest()
                .write_file(&target, Some(job.user), LocalFile(file))
                .await?;
        }
        for (mode, paths) in modes {
            for paths in paths.chunks(PATHS_AT_ONCE) {
                self.chore(
                    live,
                    &format!(r#"chmod {mode:o} -- "$@""#),
                    paths,
                    job.user,
                    output,
                )
                .await?;
            }
        }
        Ok(())
    }

    /// Runs a short script of our own with arguments.
    async fn chore(
        &self,
        live: &LiveSandbox,
        script: &str,
        arguments: &[String],
        user: &str,
        output: Output<'_>,
    ) -> Result<(), WorkshopError> {
        let mut args = vec!["-c".to_owned(), script.to_owned(), "sh".to_owned()];
        args.extend_from_slice(arguments);
        let command = Command {
            cmd: "/bin/sh".to_owned(),
            args,
            cwd: Some("/".to_owned()),
            user: Some(user.to_owned()),
            timeout: Some(CHORE_BOUND),
            ..Command::default()
        };
        self.command(live, &command, output).await
    }

    /// Runs a command to its end; anything but success is an error.
    async fn command(
        &self,
        live: &LiveSandbox,
        command: &Command,
        output: Output<'_>,
    ) -> Result<(), WorkshopError> {
        let mut process = live.guest().start(command).await?;
        let mut evidence = Vec::new();
        loop {
            match process.next().await {
                Ok(Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes))) => {
                    output(OutputStream::Stdout, bytes);
                }
                Ok(Some(ProcessEvent::Stderr(bytes))) => {
                    evidence.extend_from_slice(&bytes);
                    let excess = evidence.len().saturating_sub(EVIDENCE_BYTES);
                    evidence.drain(..excess);
                    output(OutputStream::Stderr, bytes);
                }
                Ok(Some(ProcessEvent::End(ExitStatus::Exited(0)))) => return Ok(()),
                Ok(Some(ProcessEvent::End(exit))) => {
                    let stats = live.stats().await?;
                    return Err(WorkshopError::Ended(explain(
                        self.runtime.tier(),
                        &exit,
                        &stats,
                        &self.limits,
                        &evidence,
                    )));
                }
                Ok(None) => return Err(SandboxError::Gone.into()),
                Err(GuestError::DeadlineExceeded) => {
                    let limit = command.timeout.unwrap_or(COMMAND_BOUND).as_millis();
                    let limit_ms = u64::try_from(limit).unwrap_or(u64::MAX);
                    return Err(WorkshopError::Ended(Outcome::Timeout { limit_ms }));
                }
                Err(error) => {
                    // The host may know better why the guest is silent.
                    return match live.wait(Duration::from_secs(1)).await {
                        Ok(Some(outcome)) => Err(WorkshopError::Ended(outcome)),
                        _ => Err(error.into()),
                    };
                }
            }
        }
    }
}

impl Workshop for SandboxWorkshop {
    fn perform<'step>(
        &'step self,
        job: Job<'step>,
        output: Output<'step>,
    ) -> Boxed<'step, Result<Performed, WorkshopError>> {
        Box::pin(async move {
            let live = self.open(&job).await?;
            let guard = Guard(Some(Arc::clone(live.sandbox())));
            self.work(&live, &job, output).await?;
            let sandbox = Arc::clone(live.sandbox());
            let halted = tokio::task::spawn_blocking(move || sandbox.halt()).await;
            let directory = halted.map_err(|error| SandboxError::Failed(error.to_string()))??;
            let discard = Box::pin(async move {
                guard.release();
                live.destroy().await?;
                Ok(())
            });
            Ok(Performed { directory, discard })
        })
    }
}

/// Destroys the sandbox when the build fails or is given up half-way.
struct Guard(Option<Arc<dyn Sandbox>>);

impl Guard {
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(sandbox) = self.0.take() {
            // Dropped on a thread of the executor, which must not block.
            std::thread::spawn(move || {
                if let Err(error) = sandbox.destroy() {
                    tracing::warn!(sandbox = %sandbox.id(), %error, "the sandbox of a build step was not removed");
                }
            });
        }
    }
}

/// `path` seen from `workdir`.
fn absolute(workdir: &str, path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{}/{path}", workdir.trim_end_matches('/'))
    }
}

/// Where an entry of a copy goes.
fn target(
    workdir: &str,
    to: &str,
    is_directory: bool,
    name: &Path,
) -> Result<String, WorkshopError> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "its name is not UTF-8");
    let base = absolute(workdir, to);
    if !is_directory && !base.ends_with('/') {
        return Ok(base);
    }
    let name = name.to_str().ok_or_else(|| WorkshopError::File {
        path: name.to_owned(),
        source: invalid(),
    })?;
    Ok(format!("{}/{name}", base.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_where_people_expect_them() {
        let to = |workdir: &str, to: &str, is_directory: bool, name: &str| {
            target(workdir, to, is_directory, Path::new(name)).unwrap()
        };
        assert_eq!(to("/w", "/etc/x.conf", false, "y.conf"), "/etc/x.conf");
        assert_eq!(to("/w", "/etc/", false, "y.conf"), "/etc/y.conf");
        assert_eq!(to("/w/", "x", false, "y"), "/w/x");
        assert_eq!(to("/w", "app", true, "a/b.py"), "/w/app/a/b.py");
        assert_eq!(to("/", ".", true, "a"), "/./a");
    }
}
