//! From here into a sandbox.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use anyhow::Context as _;
use atoll_client::{EntryKind, Sandbox};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, ReadBuf};

use super::checksum::{self, Copied};
use super::{Check, Counter, inside};
use crate::commands::inputs::make_executable;
use crate::commands::local_tree::{LocalKind, NAMES_AT_ONCE, walk};
use crate::terminal::harmless;

/// How often a person sees what happens.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

pub(super) async fn upload(
    sandbox: &Sandbox,
    source: &str,
    target: &str,
    check: Check,
    counter: &mut Counter,
) -> anyhow::Result<()> {
    let source = Path::new(source);
    let target = place(sandbox, source, target).await?;
    let mut copied = Vec::new();
    let mut programs = Vec::new();
    for entry in walk(source, &target)? {
        let cannot = || format!("cannot write `{}` in the sandbox", harmless(&entry.target));
        match entry.kind {
            LocalKind::Directory => {
                let made = sandbox.files().make_dir(&entry.target).await;
                made.with_context(cannot)?;
            }
            LocalKind::File { is_program } => {
                let reading = || format!("cannot read `{}`", entry.source.display());
                let file = tokio::fs::File::open(&entry.source).await;
                let tally = Arc::new(Mutex::new(Tally::default()));
                let hashed = Hashed {
                    file: file.with_context(reading)?,
                    tally: Arc::clone(&tally),
                };
                counter.begin(entry.source.display().to_string());
                let files = sandbox.files();
                let mut writing = std::pin::pin!(files.write_from(&entry.target, hashed));
                loop {
                    let ended = tokio::time::timeout(LOOK, &mut writing).await;
                    counter.add(std::mem::take(&mut lock(&tally).fresh));
                    if let Ok(written) = ended {
                        written.with_context(cannot)?;
                        break;
                    }
                }
                let sum = std::mem::take(&mut lock(&tally).hash);
                programs.extend(is_program.then(|| entry.target.clone()));
                copied.push(Copied {
                    path: entry.target.clone(),
                    sum: checksum::text(sum),
                });
            }
        }
    }
    for group in programs.chunks(NAMES_AT_ONCE) {
        make_executable(sandbox.guest(), group).await?;
    }
    match check {
        Check::Contents => checksum::compare(sandbox, &copied, counter).await,
        Check::Nothing => Ok(()),
    }
}

/// Where it goes: into a directory that is there, else to that very name.
async fn place(sandbox: &Sandbox, source: &Path, target: &str) -> anyhow::Result<String> {
    let name = source.file_name().and_then(|name| name.to_str());
    // The home of the user, when nothing else is said.
    let looked_at = if target.is_empty() { "." } else { target };
    let is_directory = target.is_empty()
        || target.ends_with('/')
        || match sandbox.files().exists(looked_at).await? {
            true => sandbox.files().stat(looked_at).await?.kind == EntryKind::Directory,
            false => false,
        };
    Ok(match name {
        Some(name) if is_directory => inside(target, name),
        _ if target.is_empty() => ".".to_owned(),
        _ => target.to_owned(),
    })
}

/// What was read of a file.
#[derive(Default)]
struct Tally {
    hash: Sha256,
    /// Bytes since somebody looked.
    fresh: usize,
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is counted and hashed while it is read.
struct Hashed {
    file: tokio::fs::File,
    tally: Arc<Mutex<Tally>>,
}

impl AsyncRead for Hashed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.file).poll_read(context, buffer))?;
        let bytes = &buffer.filled()[before..];
        let mut tally = lock(&self.tally);
        tally.hash.update(bytes);
        tally.fresh += bytes.len();
        Poll::Ready(Ok(()))
    }
}
