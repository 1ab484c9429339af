//! The memory of a sandbox on disk: written by gVisor, kept below the home until the sandbox
//! runs on as it should, and given back to gVisor only if it is what was written.
//!
//! ```text
//! pause ─▶ checkpoint, thrown away ─▶ checkpoint, kept ─▶ sync ─▶ (the processes end)
//!   └──────────── resume, when any of them fails: it runs on ◀──────┘
//! ```
//!
//! Writing a checkpoint breaks every connection to the outside. In the image of that very
//! checkpoint an `epoll` that watches such a connection is lost for its program: it reports
//! the connection for ever, and others not at all. An image that is written when they are
//! broken already is sound, so the first one is thrown away. Nothing inside runs between the
//! two.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::assemble::Runsc;
use crate::SandboxId;
use crate::host::file::{make_dir, remove_tree};
use crate::host::{HostObject, creates, program};

/// How long gVisor may take to stop or to let go.
const HOLD_BOUND: Duration = Duration::from_secs(10);
/// How long it may take to write all of its memory, each time.
const WRITE_BOUND: Duration = Duration::from_secs(60);
/// How long it may take to let go: what it writes still, after that was given up, comes first.
const RESUME_BOUND: Duration = Duration::from_secs(90);
/// Longest part of what `runsc` says that is passed on.
const LAST_WORDS_BYTES: usize = 2048;

/// Where the images of the sandboxes of a home are.
fn place(home: &Path, sandbox: &SandboxId) -> PathBuf {
    home.join("checkpoints").join(sandbox.as_str())
}

/// Removes what is kept of the memory of `sandbox`.
pub(super) fn remove(home: &Path, sandbox: &SandboxId) -> io::Result<()> {
    remove_tree(&place(home, sandbox))
}

/// Removes what is kept of the memory of sandboxes that are not among `known`, and returns of
/// how many.
pub(crate) fn remove_unknown(home: &Path, known: &BTreeSet<SandboxId>) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(home.join("checkpoints")).into_iter().flatten() {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if name.is_some_and(|name: SandboxId| !known.contains(&name)) {
            remove_tree(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The memory of a sandbox, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    directory: PathBuf,
    files: Vec<WrittenFile>,
}

/// What tells a file from another one, and from itself after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WrittenFile {
    path: PathBuf,
    place: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl WrittenFile {
    fn of(path: PathBuf) -> io::Result<Self> {
        let found = fs::symlink_metadata(&path)?;
        Ok(Self {
            place: (found.dev(), found.ino()),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            path,
        })
    }
}

impl Image {
    /// Where `runsc` finds it.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes what is in `directory` for whole, once it is on disk.
    fn seal(directory: PathBuf) -> io::Result<Self> {
        sync(&directory)?;
        Ok(Self {
            files: written(&directory)?,
            directory,
        })
    }

    /// Whether it is what was written: the same files, touched by nobody since.
    pub(super) fn check(&self) -> Result<(), String> {
        match written(&self.directory) {
            Ok(found) if found == self.files => Ok(()),
            Ok(_) => Err(format!(
                "files in `{}` were changed or replaced",
                self.directory.display()
            )),
            Err(error) => Err(format!(
                "`{}` cannot be read: {error}",
                self.directory.display()
            )),
        }
    }
}

fn written(directory: &Path) -> io::Result<Vec<WrittenFile>> {
    let mut files = fs::read_dir(directory)?
        .map(|entry| WrittenFile::of(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The sandbox runs on.
    #[error("{0}")]
    Failed(#[from] io::Error),
    /// It holds still, and cannot be let go.
    #[error("{0}")]
    Stuck(String),
}

/// Writes the memory of the sandbox `id` of `runsc`, which holds still afterwards. When it
/// fails, it runs on.
///
/// The caller must be single-threaded.
pub(super) fn write(runsc: &Runsc, home: &Path, id: &SandboxId) -> Result<Image, WriteError> {
    let place = place(home, id);
    remove_tree(&place)?;
    make_dir(&place, 0o700)?;
    let kept = place.join("image");
    let written = creates(HostObject::Checkpoint, || {
        hold(runsc)?;
        write_twice(runsc, &kept)
            .and_then(|()| Image::seal(kept.clone()))
            .or_else(|error| {
                let _ = remove_tree(&place);
                go_on(runsc, Some(&error))?;
                Err(error.into())
            })
    });
    written.inspect_err(|_| {
        let _ = remove_tree(&place);
    })
}

/// Writes the memory of a sandbox that runs on into `directory`, which does not exist yet and
/// is not left when that fails. Calls `before_it_goes_on` while it still holds still.
///
/// The caller must be single-threaded.
pub(super) fn write_and_go_on(
    runsc: &Runsc,
    directory: &Path,
    before_it_goes_on: impl FnOnce(),
) -> Result<(), WriteError> {
    let written = creates(HostObject::Checkpoint, || {
        hold(runsc)?;
        let written = write_twice(runsc, directory);
        before_it_goes_on();
        go_on(runsc, written.as_ref().err())?;
        Ok::<_, WriteError>(written?)
    });
    // Nobody waits for the disk who does not have to.
    let on_disk = written.and_then(|()| Ok(sync(directory)?));
    on_disk.inspect_err(|_| {
        // If that fails: whoever looks for it finds no record of it, and removes it.
        let _ = remove_tree(directory);
    })
}

/// Holds a sandbox still; one that cannot be runs on.
fn hold(runsc: &Runsc) -> Result<(), WriteError> {
    match call(runsc, "pause", &[], HOLD_BOUND) {
        // What was asked for may still be done.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            go_on(runsc, Some(&error))?;
            Err(error.into())
        }
        held => Ok(held?),
    }
}

/// Lets a sandbox run on that was held still, after what may have gone wrong.
fn go_on(runsc: &Runsc, error: Option<&io::Error>) -> Result<(), WriteError> {
    let resume = || call(runsc, "resume", &[], RESUME_BOUND);
    let resumed = resume().or_else(|error| match error.kind() {
        // What was asked for may still be done, and twice would be the end of gVisor's kernel.
        io::ErrorKind::TimedOut => Err(error),
        _ => resume(),
    });
    resumed.map_err(|left| {
        let before = error
            .map(|error| format!("{error}; and "))
            .unwrap_or_default();
        WriteError::Stuck(format!("{before}it does not run on: {left}"))
    })
}

/// Writes the memory of a sandbox that holds still into the new directory `kept`.
fn write_twice(runsc: &Runsc, kept: &Path) -> io::Result<()> {
    let draft = kept.with_extension("draft");
    let drafted = write_into(runsc, &draft);
    remove_tree(&draft)?;
    drafted?;
    write_into(runsc, kept)
}

/// Waits until what is in `directory` is on disk.
fn sync(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(directory)?.sync_all()
}

fn write_into(runsc: &Runsc, directory: &Path) -> io::Result<()> {
    make_dir(directory, 0o700)?;
    let path = format!("--image-path={}", directory.display());
    // Without `--leave-running` a failure would be the end of the sandbox.
    let arguments = ["--leave-running", "--compression=none", &path];
    call(runsc, "checkpoint", &arguments, WRITE_BOUND)
}

/// Runs `runsc VERB` for a sandbox that runs, where its processes can be seen.
fn call(runsc: &Runsc, verb: &str, arguments: &[&str], bound: Duration) -> io::Result<()> {
    let log = runsc.log(verb);
    let mut command = Command::new(runsc.program());
    command
        .args(runsc.flags())
        .arg(verb)
        .args(arguments)
        .arg(runsc.id())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?);
    let status = program::status_beside(runsc.keeper()?, &mut command, bound).map_err(|error| {
        let path = runsc.path().display();
        io::Error::new(error.kind(), format!("`{path} {verb}`: {error}"))
    })?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read(&log).unwrap_or_default();
    let end = text.len().saturating_sub(LAST_WORDS_BYTES);
    Err(io::Error::other(format!(
        "`{} {verb}` failed ({status}): {}",
        runsc.path().display(),
        String::from_utf8_lossy(&text[end..]).trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_anybody_touched_is_none() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("image");
        make_dir(&directory, 0o700).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
        write("checkpoint.img", "state");
        write("pages.img", "pages");
        let image = Image::seal(directory.clone()).unwrap();
        assert_eq!(image.check(), Ok(()));

        // The same bytes in another file.
        fs::hard_link(directory.join("pages.img"), place.path().join("kept")).unwrap();
        fs::remove_file(directory.join("pages.img")).unwrap();
        write("pages.img", "pages");
        assert!(image.check().unwrap_err().contains("changed or replaced"));

        let image = Image::seal(directory.clone()).unwrap();
        write("pages.img", "PAGES");
        assert!(image.check().is_err());

        let image = Image::seal(directory.clone()).unwrap();
        write("another.img", "");
        assert!(image.check().is_err());

        fs::remove_dir_all(&directory).unwrap();
        assert!(image.check().unwrap_err().contains("cannot be read"));
    }
}
