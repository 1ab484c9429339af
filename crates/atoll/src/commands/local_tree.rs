//! Files of this machine that go into a sandbox: one, or a directory with all
//! that is below it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::failure::Hinted;

/// How many names one command in a sandbox gets.
pub(crate) const NAMES_AT_ONCE: usize = 100;

/// A file, and its place in the sandbox.
pub(crate) struct LocalEntry {
    pub(crate) source: PathBuf,
    pub(crate) target: String,
    pub(crate) kind: LocalKind,
}

pub(crate) enum LocalKind {
    Directory,
    File { is_program: bool },
}

/// Everything at and below `source`, directories before what is in them.
pub(crate) fn walk(source: &Path, target: &str) -> anyhow::Result<Vec<LocalEntry>> {
    let mut found = Vec::new();
    let mut pending = vec![(source.to_owned(), target.to_owned())];
    while let Some((source, target)) = pending.pop() {
        let reading = || format!("cannot read `{}`", source.display());
        let metadata = std::fs::metadata(&source).with_context(reading)?;
        let kind = if metadata.is_file() {
            LocalKind::File {
                is_program: metadata.permissions().mode() & 0o111 != 0,
            }
        } else if metadata.is_dir() {
            for entry in std::fs::read_dir(&source).with_context(reading)? {
                pending.push(below(&entry?, &target)?);
            }
            LocalKind::Directory
        } else {
            return Err(Hinted::error(
                format!("`{}` is neither a file nor a directory", source.display()),
                "copy regular files",
            ));
        };
        found.push(LocalEntry {
            source,
            target,
            kind,
        });
    }
    Ok(found)
}

/// An entry of a directory, and its place below `target`.
fn below(entry: &std::fs::DirEntry, target: &str) -> anyhow::Result<(PathBuf, String)> {
    if entry.file_type()?.is_symlink() && entry.path().is_dir() {
        return Err(Hinted::error(
            format!("`{}` is a link to a directory", entry.path().display()),
            "name the directory itself",
        ));
    }
    let name = entry.file_name().into_string().map_err(|name| {
        Hinted::error(
            format!("the file name {name:?} is not valid UTF-8"),
            "rename it, or copy other files",
        )
    })?;
    let place = format!("{}/{name}", target.trim_end_matches('/'));
    Ok((entry.path(), place))
}
