//! What a user hands to a sandbox: environment, files, and the sandbox itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use atoll_control::LiveSandbox;
use atoll_control::templates::{Template, TemplateCatalog};
use atoll_engine::{Attachment, SandboxId, SandboxSpec, reconcile};
use atoll_guest_client::InitRequest;

use super::template::ensure_template;
use crate::arguments::{Isolation, SandboxArguments};
use crate::failure::Hinted;
use crate::home::{Home, require_root};

/// Checks everything that can be checked without a sandbox, then makes one.
pub(crate) async fn open(
    home: &Home,
    arguments: &SandboxArguments,
    lifetime: Duration,
) -> anyhow::Result<(LiveSandbox, Template)> {
    let environment = environment(&arguments.environment)?;
    let files = arguments
        .files
        .iter()
        .map(|text| FileInput::parse(text))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let limits = arguments.limits();
    limits
        .validate()
        .map_err(|error| Hinted::error(error.to_string(), "choose a value within the range"))?;
    require_root()?;
    match arguments.isolation {
        Isolation::Auto | Isolation::Container => {}
    }
    reconcile().context("cannot remove what an interrupted run left behind")?;

    let template = ensure_template(home, &arguments.template).await?;
    let layers = TemplateCatalog::open(home.path())?
        .layer_directories(&template)
        .await?;
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
        limits,
        network: arguments.net.into(),
        env: BTreeMap::new(),
        lifetime: Some(lifetime),
        attachment: Attachment::Client,
    };
    let init = InitRequest {
        env_vars: Some(variables),
        default_user: Some(template.user.clone()),
        default_workdir: Some(template.workdir.clone()),
        ..InitRequest::default()
    };
    let live = LiveSandbox::open(home.runtime()?, spec, init).await?;
    for file in &files {
        if let Err(error) = file.copy_into(&live).await {
            live.destroy().await.ok();
            return Err(error);
        }
    }
    Ok((live, template))
}

/// `NAME=VALUE`, or `NAME` to hand on the variable of the caller.
fn environment(entries: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
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
        let mut pending = vec![(self.source.clone(), self.target.clone())];
        while let Some((source, target)) = pending.pop() {
            if !source.is_dir() {
                upload(live, &source, &target).await?;
                continue;
            }
            for entry in std::fs::read_dir(&source)
                .with_context(|| format!("cannot read `{}`", source.display()))?
            {
                let entry = entry?;
                let name = entry.file_name().into_string().map_err(|name| {
                    Hinted::error(
                        format!("the file name {name:?} is not valid UTF-8"),
                        "rename it, or copy other files",
                    )
                })?;
                pending.push((
                    entry.path(),
                    format!("{}/{name}", target.trim_end_matches('/')),
                ));
            }
        }
        Ok(())
    }
}

/// Copies one file, keeping whether it can be executed.
async fn upload(live: &LiveSandbox, source: &Path, target: &str) -> anyhow::Result<()> {
    let file = tokio::fs::File::open(source)
        .await
        .with_context(|| format!("cannot read `{}`", source.display()))?;
    live.guest()
        .write_file(target, None, file)
        .await
        .with_context(|| format!("cannot write `{target}` in the sandbox"))?;
    Ok(())
}
