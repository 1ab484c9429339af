//! Small files that survive a crash as the old or the new version, never as half of one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::StateWrite;

/// Start of the names of files that are not finished.
const PREFIX: &str = ".new-";

/// Replaces `path` by `bytes` (mode 0600) so that a crash at any moment leaves
/// either the previous content or the whole new one.
///
/// # Errors
/// When the directory is missing or the file system refuses; the previous
/// content is then untouched.
pub fn write_atomically(kind: StateWrite, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.ok_or_else(|| io::Error::other("the path has no directory"))?;
    let mut file = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempfile_in(directory)?;
    // Tells a sweep that its writer lives.
    flock(file.as_file(), FlockOperation::LockExclusive)?;
    file.write_all(bytes)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o600))?;
    file.as_file().sync_all()?;
    kind.around(|| file.persist(path))
        .map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Makes `path` with `bytes` (mode 0600) unless it is there already, and
/// returns what it holds then: of several callers all get what the first one
/// wrote, and a crash leaves all of it or nothing.
///
/// # Errors
/// When the directory is missing or the file system refuses.
pub fn write_once(kind: StateWrite, path: &Path, bytes: &[u8]) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.ok_or_else(|| io::Error::other("the path has no directory"))?;
    // Made with mode 0600, as all files of this kind.
    let mut file = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempfile_in(directory)?;
    flock(file.as_file(), FlockOperation::LockExclusive)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    match kind.around(|| file.persist_noclobber(path)) {
        Ok(_) => File::open(directory)?.sync_all()?,
        // Another one was first; it may also have swept this file away.
        Err(error) if is_late(&error.error) => {}
        Err(error) => return Err(error.error),
    }
    sweep_unfinished(directory)?;
    fs::read(path)
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
    )
}

/// Removes what writers that were killed left in `directory`, and returns how many files that were.
///
/// # Errors
/// When the directory cannot be read or a file in it cannot be removed.
pub fn sweep_unfinished(directory: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            match fs::remove_file(entry.path()) {
                // Another sweep, or its writer, was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map(|()| removed += 1)?,
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_content_and_leaves_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.json");
        write_atomically(StateWrite::TemplateRecord, &path, b"one").unwrap();
        write_atomically(StateWrite::TemplateRecord, &path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_sweep_removes_what_is_unfinished_and_leaves_live_writers_alone() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for name in ["kept.json", ".new-dead", ".new-live"] {
            fs::write(at(name), "x").unwrap();
        }
        let live = File::open(at(".new-live")).unwrap();
        flock(&live, FlockOperation::LockExclusive).unwrap();
        assert_eq!(sweep_unfinished(home.path()).unwrap(), 1);
        assert!(at("kept.json").exists() && at(".new-live").exists() && !at(".new-dead").exists());
        assert_eq!(sweep_unfinished(&at("missing")).unwrap(), 0);
    }

    #[test]
    fn a_file_that_is_written_once_is_the_first_ones() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("secret");
        fs::write(home.path().join(".new-dead"), "half").unwrap();
        let writers: Vec<_> = (0..8_u8)
            .map(|number| {
                let path = path.clone();
                std::thread::spawn(move || {
                    write_once(StateWrite::NodeId, &path, &[number; 32]).unwrap()
                })
            })
            .collect();
        let got: Vec<Vec<u8>> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        let first = fs::read(&path).unwrap();
        assert_eq!(first.len(), 32);
        assert_eq!(got, vec![first; 8]);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("no/a.json");
        assert!(write_atomically(StateWrite::TemplateRecord, &path, b"x").is_err());
    }
}
