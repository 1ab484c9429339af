//! From a sandbox to here.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use atoll_client::{Code, EntryKind, GuestError, Sandbox};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::checksum::{self, Copied};
use super::{Check, Counter, inside};
use crate::failure::Hinted;
use crate::terminal::harmless;

/// Bytes read at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Directories below each other, beyond which a sandbox plays games.
const DEPTH_MAX: usize = 256;

pub(super) async fn download(
    sandbox: &Sandbox,
    source: &str,
    target: &str,
    check: Check,
    counter: &mut Counter,
) -> anyhow::Result<()> {
    let source = if source.is_empty() { "." } else { source };
    let entry = sandbox.files().stat(source).await;
    let entry = entry.map_err(|error| match error {
        GuestError::Rpc {
            code: Code::NotFound,
            ..
        } => Hinted::error(
            format!("there is nothing at `{source}` in the sandbox"),
            "check the path inside the sandbox",
        ),
        error => error.into(),
    })?;
    let target = place(source, entry.kind, target)?;
    let mut copied = Vec::new();
    let mut pending = vec![Step {
        source: source.to_owned(),
        target,
        kind: entry.kind,
        depth: 0,
    }];
    while let Some(step) = pending.pop() {
        match step.kind {
            EntryKind::File => match check {
                Check::Contents => copied.push(copy(sandbox, &step, counter).await?),
                Check::Nothing => save(sandbox, &step, counter).await?,
            },
            EntryKind::Directory => {
                std::fs::create_dir_all(&step.target)
                    .with_context(|| format!("cannot make `{}`", step.target.display()))?;
                pending.extend(list(sandbox, &step, counter).await?);
            }
            EntryKind::Symlink | EntryKind::Other => {
                let path = harmless(&step.source);
                counter.warn(&format!(
                    "`{path}` is neither a file nor a directory: left out"
                ));
            }
        }
    }
    match check {
        Check::Contents => checksum::compare(sandbox, &copied, counter).await,
        Check::Nothing => Ok(()),
    }
}

/// Something that is still to be copied.
struct Step {
    source: String,
    target: PathBuf,
    kind: EntryKind,
    depth: usize,
}

/// Where it goes: into a directory that is there, else to that very name. In
/// there it is called what the user called it; what the sandbox says about
/// its name could be the name of another file.
fn place(source: &str, kind: EntryKind, target: &str) -> anyhow::Result<PathBuf> {
    let target = PathBuf::from(target);
    if !target.is_dir() {
        return Ok(target);
    }
    match (Path::new(source).file_name(), kind) {
        (Some(name), _) if source != "~" => Ok(target.join(name)),
        // A whole home or root: what is in it goes in there.
        (_, EntryKind::Directory) => Ok(target),
        _ => Err(Hinted::error(
            format!("`{}` is no name of a file", harmless(source)),
            "name the file",
        )),
    }
}

/// What is in a directory of the sandbox.
async fn list(sandbox: &Sandbox, step: &Step, counter: &mut Counter) -> anyhow::Result<Vec<Step>> {
    let shown = harmless(&step.source);
    anyhow::ensure!(step.depth < DEPTH_MAX, "`{shown}` is too deep");
    let entries = sandbox.files().list(&step.source, 1).await;
    let entries = entries.with_context(|| format!("cannot list `{shown}`"))?;
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry.file_name()?;
        let source = inside(&step.source, name);
        if entry.is_symlink {
            let path = harmless(&source);
            counter.warn(&format!("`{path}` is a link: left out"));
            continue;
        }
        steps.push(Step {
            target: step.target.join(name),
            source,
            kind: entry.kind,
            depth: step.depth + 1,
        });
    }
    Ok(steps)
}

async fn copy(sandbox: &Sandbox, step: &Step, counter: &mut Counter) -> anyhow::Result<Copied> {
    let shown = harmless(&step.source);
    let reading = || format!("cannot read `{shown}` in the sandbox");
    let mut reader = sandbox
        .files()
        .open(&step.source)
        .await
        .with_context(reading)?;
    let mut file = create(&step.target).await?;
    let writing = || format!("cannot write `{}`", step.target.display());
    counter.begin(shown.clone());
    let mut hash = Sha256::new();
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let length = reader.read(&mut buffer).await.with_context(reading)?;
        if length == 0 {
            break;
        }
        let bytes = &buffer[..length];
        hash.update(bytes);
        file.write_all(bytes).await.with_context(writing)?;
        counter.add(length);
    }
    file.flush().await.with_context(writing)?;
    Ok(Copied {
        path: step.source.clone(),
        sum: checksum::text(hash),
    })
}

/// A copy of which nobody wants the sum: it goes past our memory.
async fn save(sandbox: &Sandbox, step: &Step, counter: &mut Counter) -> anyhow::Result<()> {
    let shown = harmless(&step.source);
    let reading = || format!("cannot read `{shown}` in the sandbox");
    let reader = sandbox.files().open(&step.source).await;
    let reader = reader.with_context(reading)?;
    let file = create(&step.target).await?.into_std().await;
    counter.begin(shown.clone());
    let saved = reader.save_to(file).await;
    let saved = saved.with_context(|| format!("cannot copy `{shown}` out of the sandbox"))?;
    counter.add(usize::try_from(saved).unwrap_or(usize::MAX));
    Ok(())
}

async fn create(target: &Path) -> anyhow::Result<File> {
    let parent = target
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make `{}`", parent.display()))?;
    }
    File::create(target)
        .await
        .with_context(|| format!("cannot write `{}`", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_called_what_the_user_called_them() {
        let here = tempfile::tempdir().unwrap();
        let directory = here.path().to_str().unwrap();
        let placed = |source, kind| place(source, kind, directory).ok();
        let file = EntryKind::File;
        assert_eq!(
            placed("/tmp/report.csv", file),
            Some(here.path().join("report.csv"))
        );
        assert_eq!(
            placed("report.csv", file),
            Some(here.path().join("report.csv"))
        );
        for source in [".", "/", "~", "a/.."] {
            assert_eq!(
                placed(source, EntryKind::Directory),
                Some(here.path().to_owned())
            );
            assert_eq!(placed(source, file), None, "{source}");
        }
        let new = here.path().join("new");
        let placed = place("/x/y", file, new.to_str().unwrap()).unwrap();
        assert_eq!(placed, new);
    }
}
