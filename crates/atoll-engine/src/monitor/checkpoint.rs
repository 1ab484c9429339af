//! The memory of a sandbox on disk: written by gVisor, kept below the home until the sandbox
//! runs on as it should, and given back to gVisor only if it is what was written.
//!
//! ```text
//! pause ─▶ checkpoint, thrown away ─▶ checkpoint, kept ─▶ sync ─▶ (the processes end)
//!   └──────────── resume, when any of them fails: it runs on ◀──────┘
//! ```
//!
//! How long each may take goes by what there is to write; what is too much for any bound is
//! refused before anybody is held still.
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
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::assemble::Runsc;
use crate::SandboxId;
use crate::host::file::{make_dir, remove_tree};
use crate::host::{HostObject, creates, program};

/// How long gVisor may take to stop: all that runs in it has to be met first. Who gives up
/// earlier cannot let it go, because nobody knows then whether it stopped.
const HOLD_BOUND: Duration = Duration::from_secs(120);
/// How long it may take to write its memory, each time, however little that is.
const WRITE_BOUND: Duration = Duration::from_secs(60);
/// The slowest disk that all of it is given time for, beyond that.
const SLOWEST_BYTES_PER_SECOND: u64 = 32 << 20;
/// The most that is written. More would be written for longer than anybody may be held still.
const IMAGE_BYTES_MAX: u64 = 16 << 30;
/// How long it may take to let go, beyond what it writes still after that was given up.
const RESUME_BOUND: Duration = Duration::from_secs(30);
/// How long it takes at most until a sandbox is written, or runs on. What is synced beside
/// it is the disk's.
pub(crate) const BOUND: Duration = {
    let write = bound(IMAGE_BYTES_MAX).as_secs();
    Duration::from_secs(HOLD_BOUND.as_secs() + 3 * write + RESUME_BOUND.as_secs())
};

/// How long `bytes` may take from one place to another.
pub(crate) const fn bound(bytes: u64) -> Duration {
    Duration::from_secs(WRITE_BOUND.as_secs() + bytes / SLOWEST_BYTES_PER_SECOND)
}
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

/// Something of gVisor's whose memory is written.
pub(super) struct Writing<'a> {
    runsc: &'a Runsc,
    /// How long its memory may take, once.
    bound: Duration,
}

impl<'a> Writing<'a> {
    /// Of a sandbox that has `bytes` at most in its memory and its files.
    pub(super) fn new(runsc: &'a Runsc, bytes: u64) -> io::Result<Self> {
        if bytes > IMAGE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "memory and files of the sandbox are {} MiB, and at most {} MiB are written",
                bytes >> 20,
                IMAGE_BYTES_MAX >> 20
            )));
        }
        Ok(Self {
            runsc,
            bound: bound(bytes),
        })
    }
}

/// Writes the memory of the sandbox `id`, which holds still afterwards. When it fails, it runs on.
///
/// The caller must be single-threaded.
pub(super) fn write(
    writing: &Writing<'_>,
    home: &Path,
    id: &SandboxId,
) -> Result<Image, WriteError> {
    let place = place(home, id);
    remove_tree(&place)?;
    make_dir(&place, 0o700)?;
    let kept = place.join("image");
    let written = creates(HostObject::Checkpoint, || {
        hold(writing)?;
        write_twice(writing, &kept)
            .and_then(|()| Image::seal(kept.clone()))
            .or_else(|error| {
                let _ = remove_tree(&place);
                go_on(writing, Some(&error))?;
                Err(error.into())
            })
    });
    written.inspect_err(|_| {
        let _ = remove_tree(&place);
    })
}

/// Writes the memory of a sandbox that runs on into `directory`, which does not exist yet and
/// is not left when that fails. Calls `before_it_goes_on` while it still holds still. Whether
/// it is on disk is the caller's to see to: nobody is held still for that.
///
/// The caller must be single-threaded.
pub(super) fn write_and_go_on(
    writing: &Writing<'_>,
    directory: &Path,
    before_it_goes_on: impl FnOnce(),
) -> Result<(), WriteError> {
    let written = creates(HostObject::Checkpoint, || {
        hold(writing)?;
        let written = write_twice(writing, directory);
        before_it_goes_on();
        go_on(writing, written.as_ref().err())?;
        Ok::<_, WriteError>(written?)
    });
    written.inspect_err(|_| {
        // If that fails: whoever looks for it finds no record of it, and removes it.
        let _ = remove_tree(directory);
    })
}

/// Holds a sandbox still; one that cannot be runs on.
fn hold(writing: &Writing<'_>) -> Result<(), WriteError> {
    match call(writing.runsc, "pause", &[], HOLD_BOUND) {
        Err(error) if may_be_done(&error) => {
            go_on(writing, Some(&error))?;
            Err(error.into())
        }
        held => Ok(held?),
    }
}

/// Lets a sandbox run on that was held still, after what may have gone wrong.
fn go_on(writing: &Writing<'_>, error: Option<&io::Error>) -> Result<(), WriteError> {
    let bound = writing.bound + RESUME_BOUND;
    let resume = || call(writing.runsc, "resume", &[], bound);
    // Twice would be the end of gVisor's kernel.
    let resumed = resume().or_else(|error| match may_be_done(&error) {
        true => Err(error),
        false => resume(),
    });
    resumed.map_err(|left| {
        let before = error
            .map(|error| format!("{error}; and "))
            .unwrap_or_default();
        WriteError::Stuck(format!("{before}it does not run on: {left}"))
    })
}

/// Whether what was asked for may have been done all the same: who asked gVisor for it was
/// ended before it could tell.
fn may_be_done(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Writes the memory of a sandbox that holds still into the new directory `kept`.
fn write_twice(writing: &Writing<'_>, kept: &Path) -> io::Result<()> {
    let draft = kept.with_extension("draft");
    let drafted = write_into(writing, &draft);
    remove_tree(&draft)?;
    drafted?;
    write_into(writing, kept)
}

/// Waits until what is in `directory` is on disk.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(directory)?.sync_all()
}

fn write_into(writing: &Writing<'_>, directory: &Path) -> io::Result<()> {
    make_dir(directory, 0o700)?;
    let path = format!("--image-path={}", directory.display());
    // Without `--leave-running` a failure would be the end of the sandbox.
    let arguments = ["--leave-running", "--compression=none", &path];
    call(writing.runsc, "checkpoint", &arguments, writing.bound)
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
    let kind = match status.signal() {
        Some(_) => io::ErrorKind::Interrupted,
        None => io::ErrorKind::Other,
    };
    let what = format!(
        "`{} {verb}` failed ({status}): {}",
        runsc.path().display(),
        String::from_utf8_lossy(&text[end..]).trim()
    );
    Err(io::Error::new(kind, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_short_may_be_done_and_what_was_refused_is_not() {
        for (kind, expected) in [
            (io::ErrorKind::TimedOut, true),
            (io::ErrorKind::Interrupted, true),
            (io::ErrorKind::Other, false),
            (io::ErrorKind::NotFound, false),
        ] {
            assert_eq!(may_be_done(&kind.into()), expected, "{kind}");
        }
    }

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
        // Before Linux 6.13 the clock of files stands still for some milliseconds.
        let pages = || WrittenFile::of(directory.join("pages.img")).unwrap();
        let sealed = pages();
        while pages() == sealed {
            write("pages.img", "PAGES");
        }
        assert!(image.check().is_err());

        let image = Image::seal(directory.clone()).unwrap();
        write("another.img", "");
        assert!(image.check().is_err());

        fs::remove_dir_all(&directory).unwrap();
        assert!(image.check().unwrap_err().contains("cannot be read"));
    }
}
