//! `Remove`: a file, or a directory with all that is in it.
//!
//! Not `std::fs::remove_dir_all`: it recurses and keeps every level open,
//! and a tree deep enough would take PID 1 with it. Links are removed, never
//! followed, also when somebody puts them in the place of a directory
//! meanwhile.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::descent::{DIRECTORY, Descent, Found, read_some};
use super::error::{FilesystemError, failed};

/// How often directories may turn out to be filled again, or to be something
/// else, before we give up.
const SURPRISES_MAX: usize = 1000;

/// Removes what is at `path`. Nothing there is fine.
pub(crate) fn remove(path: &str) -> Result<(), FilesystemError> {
    let Some((above, name)) = path.rsplit_once('/').filter(|(_, name)| !name.is_empty()) else {
        return Err(FilesystemError::Root);
    };
    let above = if above.is_empty() { "/" } else { above };
    // Held open, so that `name` stays in the same directory throughout.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = match openat(CWD, above, flags, Mode::empty()) {
        Ok(above) => above,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed("remove", path)(error)),
    };
    let name = CString::new(name).map_err(|_| crate::paths::PathError::Nul)?;
    let mut removal = Removal {
        path,
        surprises_left: SURPRISES_MAX,
    };
    loop {
        match unlink(above.as_fd(), &name).map_err(failed("remove", path))? {
            Unlinked::Gone => return Ok(()),
            Unlinked::Filled => {}
        }
        match openat(&above, name.as_c_str(), DIRECTORY, Mode::empty()) {
            Ok(top) => removal.empty(top)?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(failed("remove", path)(error)),
        }
        removal.surprise()?;
    }
}

/// What came of an attempt to remove one name.
enum Unlinked {
    /// Nothing has the name any more.
    Gone,
    /// It is a directory with something in it.
    Filled,
}

/// Removes a file, a link or an empty directory.
fn unlink(dir: BorrowedFd<'_>, name: &CStr) -> Result<Unlinked, Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Unlinked::Gone),
        // Linux says the first of a directory, POSIX the second.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Unlinked::Filled),
        // No directory after all: one that may not be removed, or one
        // that became something else just now.
        Err(Errno::NOTDIR) => match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
            Err(Errno::ISDIR) => Ok(Unlinked::Filled),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

struct Removal<'a> {
    path: &'a str,
    surprises_left: usize,
}

impl Removal<'_> {
    /// Removes what is in a directory.
    fn empty(&mut self, top: OwnedFd) -> Result<(), FilesystemError> {
        let mut descent = Descent::new(top);
        // What was read of each level and is still there. A level that is
        // closed is read again from its start when we come back to it.
        let mut batches: Vec<Vec<Found>> = vec![Vec::new()];
        while let Some(batch) = batches.last_mut() {
            let Some(dir) = descent.current() else {
                // It was moved away: not ours any more.
                batches.pop();
                descent.leave();
                continue;
            };
            if batch.is_empty() {
                *batch = read_some(dir).map_err(|error| self.error(&descent, None, error))?;
            }
            let Some(found) = batch.pop() else {
                batches.pop();
                let Some(name) = descent.leave() else { break };
                let Some(above) = descent.current() else {
                    continue;
                };
                match unlink(above, &name) {
                    Ok(Unlinked::Gone) => {}
                    Ok(Unlinked::Filled) => {
                        self.surprise()?;
                        if let Some(batch) = batches.last_mut() {
                            batch.push(Found {
                                name,
                                kind: FileType::Directory,
                            });
                        }
                    }
                    Err(error) => return Err(self.error(&descent, Some(&name), error)),
                }
                continue;
            };
            match unlink(dir, &found.name) {
                Ok(Unlinked::Gone) => {}
                Ok(Unlinked::Filled) => match descent.enter(&found.name) {
                    Ok(closed) => {
                        if let Some(batch) = closed
                            .and_then(|level| level.checked_add(1))
                            .and_then(|index| batches.get_mut(index))
                        {
                            *batch = Vec::new();
                        }
                        batches.push(Vec::new());
                    }
                    Err(Errno::NOENT) => {}
                    Err(Errno::NOTDIR | Errno::LOOP) => {
                        self.surprise()?;
                        batch.push(found);
                    }
                    Err(error) => return Err(self.error(&descent, Some(&found.name), error)),
                },
                Err(error) => return Err(self.error(&descent, Some(&found.name), error)),
            }
        }
        Ok(())
    }

    fn surprise(&mut self) -> Result<(), FilesystemError> {
        match self.surprises_left.checked_sub(1) {
            Some(left) => {
                self.surprises_left = left;
                Ok(())
            }
            None => Err(FilesystemError::Refilled(self.path.to_owned())),
        }
    }

    fn error(&self, descent: &Descent, name: Option<&CStr>, error: Errno) -> FilesystemError {
        let mut path = self.path.to_owned();
        for part in descent.names().chain(name) {
            path.push('/');
            path.push_str(&part.to_string_lossy());
        }
        failed("remove", &path)(error)
    }
}
