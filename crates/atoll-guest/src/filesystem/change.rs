//! `MakeDir` and `Move`.

use atoll_protocol::envd::filesystem::EntryInfo;
use rustix::fs::{CWD, Mode, lstat, mkdirat, renameat, stat};
use rustix::io::Errno;

use super::entry::describe;
use super::error::{FilesystemError, failed};
use crate::users::Names;

/// Permissions of a new directory.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Makes a directory and those above it.
pub(crate) fn make(path: &str, names: &Names) -> Result<EntryInfo, FilesystemError> {
    match stat(path) {
        Ok(there) => return Err(exists(path, there.st_mode)),
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR) => return Err(above_is_a_file(path)),
        Err(error) => return Err(failed("stat", path)(error)),
    }
    make_above(path)?;
    match mkdirat(CWD, path, DIRECTORY_MODE) {
        Ok(()) => describe(path, names).map_err(failed("stat", path)),
        // Somebody was faster, or it is a link that leads nowhere.
        Err(Errno::EXIST) => Err(exists(path, stat(path).map_or(0, |there| there.st_mode))),
        Err(error) => Err(failed("mkdir", path)(error)),
    }
}

/// Gives a file or directory another name, in a directory made for it if
/// need be. As with `rename`, a file in its place is replaced.
pub(crate) fn rename(
    source: &str,
    destination: &str,
    names: &Names,
) -> Result<EntryInfo, FilesystemError> {
    // First, so that a wrong source leaves no empty directories behind.
    lstat(source).map_err(|error| move_error(error, source, destination))?;
    make_above(destination)?;
    renameat(CWD, source, CWD, destination)
        .map_err(|error| move_error(error, source, destination))?;
    describe(destination, names).map_err(failed("stat", destination))
}

fn move_error(error: Errno, source: &str, destination: &str) -> FilesystemError {
    match error {
        Errno::NOENT => FilesystemError::SourceNotFound(source.to_owned()),
        Errno::XDEV => FilesystemError::OtherFilesystem {
            source_path: source.to_owned(),
            destination: destination.to_owned(),
        },
        Errno::EXIST | Errno::NOTEMPTY => {
            FilesystemError::DestinationNotEmpty(destination.to_owned())
        }
        Errno::INVAL => FilesystemError::IntoItself(source.to_owned()),
        error => failed("move", &format!("{source}' to '{destination}"))(error),
    }
}

/// Makes the directories above `path` that are missing.
fn make_above(path: &str) -> Result<(), FilesystemError> {
    let above: Vec<&str> = path
        .match_indices('/')
        .map(|(end, _)| &path[..end])
        .filter(|above| !above.is_empty())
        .collect();
    // From the bottom up to what is there, so that nothing above it is asked
    // for permission or written to.
    let mut missing = above.len();
    while let Some(directory) = missing.checked_sub(1).and_then(|last| above.get(last)) {
        match stat(*directory) {
            Ok(there) if is_directory(there.st_mode) => break,
            Ok(_) | Err(Errno::NOTDIR) => return Err(above_is_a_file(path)),
            Err(Errno::NOENT) => missing -= 1,
            Err(error) => return Err(failed("stat", directory)(error)),
        }
    }
    for directory in above.iter().skip(missing) {
        match mkdirat(CWD, *directory, DIRECTORY_MODE) {
            Ok(()) => {}
            // Somebody was faster, or it is a link that leads nowhere.
            Err(Errno::EXIST)
                if stat(*directory).is_ok_and(|there| is_directory(there.st_mode)) => {}
            Err(Errno::EXIST) => {
                return Err(FilesystemError::ExistsAsFile((*directory).to_owned()));
            }
            Err(error) => return Err(failed("mkdir", directory)(error)),
        }
    }
    Ok(())
}

fn exists(path: &str, mode: u32) -> FilesystemError {
    if is_directory(mode) {
        FilesystemError::DirectoryExists(path.to_owned())
    } else {
        FilesystemError::ExistsAsFile(path.to_owned())
    }
}

/// Names the part of `path` that is in the way.
fn above_is_a_file(path: &str) -> FilesystemError {
    let culprit = path
        .match_indices('/')
        .map(|(end, _)| &path[..end])
        .filter(|above| !above.is_empty())
        .find(|above| stat(*above).is_ok_and(|there| !is_directory(there.st_mode)));
    FilesystemError::NotADirectory(culprit.unwrap_or(path).to_owned())
}

fn is_directory(mode: u32) -> bool {
    rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Directory
}
