//! What a user hands to a sandbox: environment, files, and the sandbox itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use atoll_control::isolation::Choice;
use atoll_control::templates::{Template, TemplateCatalog};
use atoll_control::{LiveSandbox, service};
use atoll_engine::{Attachment, Limits, SandboxId, SandboxSpec, open_files_ceiling};
use atoll_guest_client::{Command, GuestClient, InitRequest, LocalFile, ProcessEvent};

use super::isolation;
use super::local_tree::{self, LocalEntry, LocalKind, NAMES_AT_ONCE};
use super::template::ensure_template;
use crate::arguments::SandboxArguments;
use crate::failure::Hinted;
use crate::home::{Home, require_root};

/// What programs and shells start from, unless told otherwise.
pub(crate) const DEFAULT_TEMPLATE: &str = "base";
/// What cells start from: it has kernels, and what pictures are drawn with.
pub(crate) const DEFAULT_CELL_TEMPLATE: &str = "code-interpreter-v1-slim";

/// A sandbox as the user asked for it.
pub(crate) struct Opened {
    pub(crate) live: LiveSandbox,
    pub(crate) template: Template,
    pub(crate) limits: Limits,
    pub(crate) isolation: Choice,
}

/// Checks everything that can be checked without a sandbox, then makes one.
pub(crate) async fn open(
    home: &Home,
    arguments: &SandboxArguments,
    default_template: &str,
    lifetime: Duration,
) -> anyhow::Result<Opened> {
    let environment = environment(&arguments.environment)?;
    let files = arguments
        .files
        .iter()
        .map(|text| FileInput::parse(text))
        .collect::<anyhow::Result<Vec<_>>>()?;
    check(&arguments.limits(&Limits::default()))?;
    let network = arguments.network(&home.network_defaults())?;
    require_root()?;
    let template = ensure_template(
        home,
        arguments.template.as_deref().unwrap_or(default_template),
    )
    .await?;
    let catalog = TemplateCatalog::open(home.path())?;
    let held = catalog.hold_layers().await?;
    let default = template.resources.apply(&Limits::default());
    let default = Limits {
        open_files: default.open_files.min(open_files_ceiling()),
        ..default
    };
    let limits = arguments.limits(&default);
    check(&limits)?;
    let layers = catalog.layer_directories(&template).await?;
    let isolation = isolation::choose(home, arguments.isolation, &layers, &template.user).await?;
    home.explain(&format!(
        "isolation: {} ({})",
        isolation.tier, isolation.reason
    ));
    let id = SandboxId::random()?;
    let mut variables = template.env.clone();
    variables.extend([
        ("E2B_SANDBOX".to_owned(), "true".to_owned()),
        ("E2B_SANDBOX_ID".to_owned(), id.to_string()),
        ("E2B_TEMPLATE_ID".to_owned(), template.id.to_string()),
    ]);
    variables.extend(environment);
    let spec = SandboxSpec {
        hostname: id.to_string(),
        id,
        layers,
        limits: limits.clone(),
        network,
        env: BTreeMap::new(),
        lifetime: Some(lifetime),
        attachment: Attachment::Client,
        memory: None,
    };
    let init = InitRequest {
        env_vars: Some(variables),
        default_user: Some(template.user.clone()),
        default_workdir: Some(template.workdir.clone()),
        ..InitRequest::default()
    };
    let live = LiveSandbox::open(home.runtime(isolation.tier)?, spec, init).await?;
    drop(held);
    let furnished = async {
        for file in &files {
            file.copy_into(&live).await?;
        }
        Ok(service::start(&live, &template).await?)
    };
    if let Err(error) = furnished.await {
        live.destroy().await.ok();
        return Err(error);
    }
    Ok(Opened {
        live,
        template,
        limits,
        isolation,
    })
}

fn check(limits: &Limits) -> anyhow::Result<()> {
    limits
        .validate()
        .map_err(|error| Hinted::error(error.to_string(), "choose a value within the range"))
}

/// `NAME=VALUE`, or `NAME` to hand on the variable of the caller.
pub(crate) fn environment(entries: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    entries
        .iter()
        .map(|entry| match entry.split_once('=') {
            Some(("", _)) => Err(Hinted::error(
                format!("`--env {entry}` has no name"),
                "write --env NAME=VALUE",
            )),
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => match std::env::var(entry) {
                Ok(value) => Ok((entry.clone(), value)),
                Err(_) => Err(Hinted::error(
                    format!("`--env {entry}`: there is no such variable in your environment"),
                    format!("write --env {entry}=VALUE"),
                )),
            },
        })
        .collect()
}

/// A file or directory of the host and its place in the sandbox.
struct FileInput {
    source: PathBuf,
    target: String,
}

impl FileInput {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (source, target) = text
            .rsplit_once(':')
            .filter(|(source, target)| !source.is_empty() && !target.is_empty())
            .ok_or_else(|| {
                Hinted::error(
                    format!("`--file {text}` is not SOURCE:TARGET"),
                    "example: --file data.csv:/home/user/data.csv",
                )
            })?;
        let source = PathBuf::from(source);
        std::fs::metadata(&source)
            .with_context(|| format!("cannot read `{}`", source.display()))?;
        Ok(Self {
            source,
            target: target.to_owned(),
        })
    }

    async fn copy_into(&self, live: &LiveSandbox) -> anyhow::Result<()> {
        let mut programs = Vec::new();
        for LocalEntry {
            source,
            target,
            kind,
        } in local_tree::walk(&self.source, &self.target)?
        {
            match kind {
                LocalKind::Directory => {
                    let made = live.guest().make_dir(&target, None).await;
                    made.with_context(|| format!("cannot make `{target}` in the sandbox"))?;
                }
                LocalKind::File { is_program } => {
                    upload(live, &source, &target).await?;
                    programs.extend(is_program.then_some(target));
                }
            }
        }
        for group in programs.chunks(NAMES_AT_ONCE) {
            make_executable(live.guest(), group).await?;
        }
        Ok(())
    }
}

async fn upload(live: &LiveSandbox, source: &Path, target: &str) -> anyhow::Result<()> {
    let file = tokio::fs::File::open(source)
        .await
        .with_context(|| format!("cannot read `{}`", source.display()))?;
    live.guest()
        .write_file(target, None, LocalFile(file.into_std().await))
        .await
        .with_context(|| format!("cannot write `{target}` in the sandbox"))
}

/// Gives files inside the right to be executed that they had outside.
pub(crate) async fn make_executable(guest: &GuestClient, targets: &[String]) -> anyhow::Result<()> {
    // As for uploads, a relative target is below the home of the user, whoever may change it.
    let home = guest.stat("~", None).await?.path.into_given();
    let mut args = vec!["a+x".to_owned(), "--".to_owned()];
    args.extend(
        targets
            .iter()
            .map(|target| target.strip_prefix("~/").unwrap_or(target).to_owned()),
    );
    let command = Command {
        cmd: "chmod".to_owned(),
        args,
        cwd: Some(home),
        user: Some("root".to_owned()),
        ..Command::default()
    };
    let mut process = guest.start(&command).await?;
    while let Some(event) = process.next().await? {
        if let ProcessEvent::End(exit) = event {
            anyhow::ensure!(
                exit.code() == 0,
                "cannot make {targets:?} executable: {}",
                exit.text()
            );
            break;
        }
    }
    Ok(())
}
