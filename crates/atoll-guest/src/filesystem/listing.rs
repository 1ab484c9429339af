//! `ListDir`: a tree of directories, each before what is in it.

use std::os::fd::AsFd;
use std::vec;

use atoll_protocol::envd::filesystem::{EntryInfo, FileType};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::descent::{Descent, Found, can_be_skipped, read_some};
use super::entry::describe_in;
use super::error::{FilesystemError, failed};
use crate::users::Names;

/// Entries of one answer.
const ENTRIES_MAX: usize = 200_000;

/// Bytes of all texts of one answer: paths add up in deep trees.
const TEXT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a key and its value take beside their text.
const PAIR_BYTES: usize = 96;

/// Everything up to `depth` levels below `path`, in the order of names. A
/// link at `path` is followed, links below it are not.
pub(crate) fn list(
    path: &str,
    depth: u32,
    names: &Names,
) -> Result<Vec<EntryInfo>, FilesystemError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => FilesystemError::PathNotFound(path.to_owned()),
        Errno::NOTDIR => FilesystemError::NotADirectory(path.to_owned()),
        error => failed("open", path)(error),
    })?;
    let mut listing = Listing {
        path,
        names,
        seen: 0,
        text_bytes: 0,
        entries: Vec::new(),
    };
    listing.walk(
        Descent::new(top),
        usize::try_from(depth.max(1)).unwrap_or(usize::MAX),
    )?;
    Ok(listing.entries)
}

struct Listing<'a> {
    path: &'a str,
    names: &'a Names,
    seen: usize,
    text_bytes: usize,
    entries: Vec<EntryInfo>,
}

/// A directory of which a part is still to be told.
struct Level {
    rest: vec::IntoIter<Found>,
    /// Length of the path of the directory itself.
    path_bytes: usize,
}

impl Listing<'_> {
    fn walk(&mut self, mut descent: Descent, depth: usize) -> Result<(), FilesystemError> {
        // Below `/` the separator is there already.
        let mut path = self.path.trim_end_matches('/').to_owned();
        let mut levels = vec![Level {
            rest: self.read_all(&descent, &path)?,
            path_bytes: path.len(),
        }];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_bytes);
            // A directory that was lost on the way back has no rest.
            let Some((found, dir)) = level.rest.next().zip(descent.current()) else {
                levels.pop();
                descent.leave();
                continue;
            };
            path.push('/');
            path.push_str(&found.name.to_string_lossy());
            match describe_in(dir, &found.name, &path, self.names) {
                Ok(entry) => {
                    let enters = depth > levels.len()
                        && !entry.is_symlink
                        && entry.r#type == FileType::FILE_TYPE_DIRECTORY;
                    self.add(entry)?;
                    if !enters {
                        continue;
                    }
                }
                // It vanished since the directory was read.
                Err(error) if can_be_skipped(error) => continue,
                Err(error) => return Err(failed("stat", &path)(error)),
            }
            match descent.enter(&found.name) {
                Ok(_) => levels.push(Level {
                    rest: self.read_all(&descent, &path)?,
                    path_bytes: path.len(),
                }),
                Err(error) if can_be_skipped(error) => {}
                Err(error) => return Err(failed("open", &path)(error)),
            }
        }
        Ok(())
    }

    /// The names in the current directory, sorted, if the answer has room.
    fn read_all(
        &mut self,
        descent: &Descent,
        path: &str,
    ) -> Result<vec::IntoIter<Found>, FilesystemError> {
        let mut all = Vec::new();
        if let Some(dir) = descent.current() {
            loop {
                let mut some = match read_some(dir.as_fd()) {
                    Ok(some) => some,
                    Err(error) if can_be_skipped(error) && !descent.is_at_top() => break,
                    Err(error) => return Err(failed("read", path)(error)),
                };
                if some.is_empty() {
                    break;
                }
                self.seen += some.len();
                if self.seen > ENTRIES_MAX {
                    return Err(self.too_many());
                }
                all.append(&mut some);
            }
        }
        all.sort_unstable_by(|one: &Found, other| one.name.cmp(&other.name));
        Ok(all.into_iter())
    }

    fn add(&mut self, entry: EntryInfo) -> Result<(), FilesystemError> {
        self.text_bytes += entry.path.len()
            + entry.name.len()
            + entry.symlink_target.as_ref().map_or(0, String::len)
            + entry
                .metadata
                .iter()
                .map(|(key, value)| key.len() + value.len() + PAIR_BYTES)
                .sum::<usize>();
        if self.text_bytes > TEXT_BYTES_MAX {
            return Err(self.too_many());
        }
        self.entries.push(entry);
        Ok(())
    }

    fn too_many(&self) -> FilesystemError {
        FilesystemError::TooManyEntries {
            path: self.path.to_owned(),
            entries_max: ENTRIES_MAX,
        }
    }
}
