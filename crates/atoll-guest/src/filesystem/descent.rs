//! The way down into a tree of directories and back, by descriptors.
//!
//! No path is looked up twice, so nobody can swap a directory for a link
//! below our feet, and a tree may be deeper than any path is long. Only the
//! deepest directories stay open. The others are found again on the way
//! back, through `..` or else from the top, and are checked to be the same.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, RawDir, Stat, fstat, openat};
use rustix::io::Errno;

/// Directories that are open at once, besides the top.
const OPEN_MAX: usize = 32;

/// What one read of a directory may bring.
const READ_BYTES: usize = 32 * 1024;

/// How a directory below another is opened.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Which directory it is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity in what the kernel tells about a file.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// One directory below the top.
struct Level {
    name: CString,
    identity: Identity,
    fd: Option<OwnedFd>,
}

/// Where we are in a tree.
pub(crate) struct Descent {
    top: OwnedFd,
    levels: Vec<Level>,
}

impl Descent {
    /// Starts at an open directory.
    pub(crate) fn new(top: OwnedFd) -> Self {
        Self {
            top,
            levels: Vec::new(),
        }
    }

    /// Whether the current directory is the one we started at.
    pub(crate) fn is_at_top(&self) -> bool {
        self.levels.is_empty()
    }

    /// Names of the directories on the way down.
    pub(crate) fn names(&self) -> impl Iterator<Item = &CStr> {
        self.levels.iter().map(|level| level.name.as_c_str())
    }

    /// The directory we are in; none when it was lost on the way back.
    pub(crate) fn current(&self) -> Option<BorrowedFd<'_>> {
        match self.levels.last() {
            Some(level) => level.fd.as_ref().map(AsFd::as_fd),
            None => Some(self.top.as_fd()),
        }
    }

    /// Goes into a directory of the current one, not through a link. Says
    /// which level had to be closed for it, if one had.
    pub(crate) fn enter(&mut self, name: &CStr) -> Result<Option<usize>, Errno> {
        let current = self.current().ok_or(Errno::STALE)?;
        let fd = openat(current, name, DIRECTORY, Mode::empty())?;
        let identity = Identity::of(&fstat(&fd)?);
        self.levels.push(Level {
            name: name.to_owned(),
            identity,
            fd: Some(fd),
        });
        let closed = self.levels.len().checked_sub(OPEN_MAX + 1);
        Ok(closed.filter(|&index| {
            self.levels
                .get_mut(index)
                .is_some_and(|level| level.fd.take().is_some())
        }))
    }

    /// Goes back to the directory above and says the name of the one left.
    /// When the one above cannot be found any more there is no current one.
    pub(crate) fn leave(&mut self) -> Option<CString> {
        let left = self.levels.pop()?;
        let lost = self
            .levels
            .last()
            .filter(|level| level.fd.is_none())
            .map(|level| level.identity);
        if let Some(identity) = lost {
            let found = left
                .fd
                .and_then(|below| open_same(below.as_fd(), c"..", identity))
                .or_else(|| self.reopen_by_names());
            if let Some(level) = self.levels.last_mut() {
                level.fd = found;
            }
        }
        Some(left.name)
    }

    /// Opens the current directory again by the names that led to it.
    fn reopen_by_names(&self) -> Option<OwnedFd> {
        let mut found: Option<OwnedFd> = None;
        for level in &self.levels {
            let above = found.as_ref().map_or(self.top.as_fd(), AsFd::as_fd);
            found = Some(open_same(above, &level.name, level.identity)?);
        }
        found
    }
}

fn open_same(above: BorrowedFd<'_>, name: &CStr, identity: Identity) -> Option<OwnedFd> {
    let fd = openat(above, name, DIRECTORY, Mode::empty()).ok()?;
    (Identity::of(&fstat(&fd).ok()?) == identity).then_some(fd)
}

/// Something in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its name.
    pub(crate) name: CString,
    /// What the file system says it is. Some say nothing.
    pub(crate) kind: FileType,
}

/// What the next read of an open directory brings; nothing at its end.
pub(crate) fn read_some(dir: BorrowedFd<'_>) -> Result<Vec<Found>, Errno> {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let mut reader = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut found = Vec::new();
    loop {
        match reader.next() {
            None => return Ok(found),
            // It was removed while it was open: nothing is in it.
            Some(Err(Errno::NOENT)) => return Ok(found),
            Some(Err(error)) => return Err(error),
            Some(Ok(entry)) => {
                let name = entry.file_name();
                if name != c"." && name != c".." {
                    found.push(Found {
                        name: name.to_owned(),
                        kind: entry.file_type(),
                    });
                }
            }
        }
        // `.` and `..` alone do not mean that this is the end.
        if reader.is_buffer_empty() && !found.is_empty() {
            return Ok(found);
        }
    }
}

/// Whether an error says that a directory is not there any more, or cannot
/// be looked into, and the rest of a tree can be walked without it. procfs and
/// dead network file systems have their own ways to say so.
pub(crate) fn can_be_skipped(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::STALE
            | Errno::ACCESS
            | Errno::PERM
            | Errno::SRCH
            | Errno::INVAL
            | Errno::NODEV
            | Errno::NOTCONN
            | Errno::OPNOTSUPP
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat};

    fn open(path: &std::path::Path) -> OwnedFd {
        openat(CWD, path, DIRECTORY, Mode::empty()).unwrap()
    }

    fn names_in(descent: &Descent) -> Vec<CString> {
        // Each time anew: a descriptor remembers how far it was read.
        let again = openat(descent.current().unwrap(), c".", DIRECTORY, Mode::empty()).unwrap();
        let found = read_some(again.as_fd()).unwrap();
        found.into_iter().map(|found| found.name).collect()
    }

    #[test]
    fn a_deep_tree_is_walked_with_few_descriptors() {
        let place = tempfile::tempdir().unwrap();
        let mut descent = Descent::new(open(place.path()));
        for level in 0..200 {
            let name = CString::new(format!("d{level}")).unwrap();
            mkdirat(descent.current().unwrap(), &name, Mode::RWXU).unwrap();
            descent.enter(&name).unwrap();
        }
        let open_levels = descent.levels.iter().filter(|level| level.fd.is_some());
        assert_eq!(open_levels.count(), OPEN_MAX);
        for level in (0..200).rev() {
            let name = CString::new(format!("d{level}")).unwrap();
            assert_eq!(descent.leave(), Some(name.clone()));
            assert_eq!(names_in(&descent), [name]);
        }
        assert_eq!(descent.leave(), None);
    }

    #[test]
    fn a_directory_moved_away_is_lost_but_not_the_ones_above() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        let deep: std::path::PathBuf = (0..60).map(|level| format!("d{level}")).collect();
        std::fs::create_dir_all(tree.join(&deep)).unwrap();
        let mut descent = Descent::new(open(&tree));
        for level in 0..60 {
            descent
                .enter(&CString::new(format!("d{level}")).unwrap())
                .unwrap();
        }
        // From `d5` on the tree is elsewhere, below directories of the same names.
        let from = tree.join("d0/d1/d2/d3/d4/d5");
        std::fs::rename(&from, place.path().join("elsewhere")).unwrap();
        std::fs::create_dir(&from).unwrap();
        for _ in 0..54 {
            descent.leave();
        }
        assert_eq!(names_in(&descent), [c"d6".to_owned()]);
        descent.leave();
        assert_eq!(names_in(&descent), [c"d5".to_owned()]);
        assert_eq!(descent.levels.len(), 5);
    }

    #[test]
    fn links_are_not_entered() {
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", place.path().join("link")).unwrap();
        let mut descent = Descent::new(open(place.path()));
        assert!(descent.enter(c"link").is_err_and(can_be_skipped));
    }
}
