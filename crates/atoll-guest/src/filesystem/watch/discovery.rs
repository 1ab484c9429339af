//! Directories that appear are watched, and what is in them by then is told.
//!
//! The kernel does not tell what was in a directory before it was watched,
//! so we look:
//!
//! 1. watch the directory, 2. read it, 3. take over the kernel's queue.
//!
//! What was read and has no creation in the queue was there before the
//! watch, and is told by us; the rest is told by the queue. The kernel holds
//! a directory's lock while it queues, so nothing falls between.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use atoll_protocol::envd::filesystem::EventType;
use rustix::fs::inotify::ReadFlags;
use rustix::fs::{AtFlags, CWD, FileType, Mode, fstat, lstat, openat, statat};
use rustix::io::Errno;

use super::super::descent::{DIRECTORY, Found, Identity, can_be_skipped, read_some};
use super::WatchError;
use super::kernel::{Descriptor, Links};
use super::teller::Stop;
use super::tracker::{Tracker, cannot_watch};

/// Directories of one watch.
const DIRECTORIES_MAX: usize = 200_000;

/// Entries of a directory that appears.
const ENTRIES_MAX: usize = 200_000;

/// What came of an attempt to watch a directory.
enum Watched {
    /// It was not watched before.
    New(Descriptor, OwnedFd),
    /// It was.
    Known(Descriptor),
    /// There is no such directory now.
    Missing,
}

/// What the queue says about a name.
#[derive(Default)]
struct Queued {
    /// Whether it begins with its creation.
    created: bool,
    /// Whether it was written to.
    written: bool,
}

/// Something in a directory that appeared.
struct Entry {
    name: OsString,
    is_directory: bool,
    has_content: bool,
}

impl Tracker {
    /// A directory has a new name, or is new altogether.
    pub(super) fn appeared(
        &mut self,
        above: Descriptor,
        name: OsString,
        moved: Option<Descriptor>,
    ) -> Result<(), Stop> {
        match (self.watch(above, &name)?, moved) {
            (Watched::New(directory, dir), _) => {
                self.tree.attach(directory, above, &name);
                return self.look_into(directory, &dir);
            }
            (Watched::Known(directory), _) | (Watched::Missing, Some(directory)) => {
                self.tree.attach(directory, above, &name);
            }
            (Watched::Missing, None) => {
                self.missed.insert((above, name));
                return Ok(());
            }
        }
        for (above, name) in self.missed.clone() {
            match self.watch(above, &name)? {
                Watched::New(directory, dir) => {
                    self.tree.attach(directory, above, &name);
                    self.missed.remove(&(above, name));
                    self.look_into(directory, &dir)?;
                }
                Watched::Known(directory) => {
                    self.tree.attach(directory, above, &name);
                    self.missed.remove(&(above, name));
                }
                Watched::Missing => {}
            }
        }
        Ok(())
    }

    /// Tells what was in a new directory before it was watched, and does the
    /// same with those in it.
    pub(super) fn look_into(&mut self, directory: Descriptor, dir: &OwnedFd) -> Result<(), Stop> {
        let mut waiting = self.tell_earlier(directory, dir)?;
        while let Some((above, name)) = waiting.pop() {
            self.teller.check()?;
            match self.watch(above, &name)? {
                Watched::New(directory, dir) => {
                    self.tree.attach(directory, above, &name);
                    waiting.append(&mut self.tell_earlier(directory, &dir)?);
                }
                Watched::Known(directory) => self.tree.attach(directory, above, &name),
                Watched::Missing => {
                    self.missed.insert((above, name));
                }
            }
        }
        Ok(())
    }

    /// Tells what is in a directory and was there before the watch. Returns
    /// the directories among it, the first one last.
    fn tell_earlier(
        &mut self,
        directory: Descriptor,
        dir: &OwnedFd,
    ) -> Result<Vec<(Descriptor, OsString)>, Stop> {
        let path = self.tree.path(directory).unwrap_or_default();
        let mut entries = self.read_all(dir, &path)?;
        self.take_queue()?;
        let mut queued: HashMap<OsString, Queued> = HashMap::new();
        for event in &self.pending {
            if event.directory == directory
                && let Some(name) = &event.name
            {
                let creation = ReadFlags::CREATE | ReadFlags::MOVED_TO;
                let about = queued.entry(name.clone()).or_insert(Queued {
                    created: event.flags.intersects(creation),
                    written: false,
                });
                about.written |= event.flags.contains(ReadFlags::MODIFY);
            }
        }
        let mut directories = Vec::new();
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for entry in entries {
            let about = queued.remove(&entry.name).unwrap_or_default();
            if about.created {
                continue;
            }
            let told = path.join(&entry.name);
            self.teller.tell(EventType::EVENT_TYPE_CREATE, &told)?;
            if entry.has_content && !about.written {
                self.teller.tell(EventType::EVENT_TYPE_WRITE, &told)?;
            }
            if entry.is_directory {
                directories.push((directory, entry.name));
            }
        }
        // What was there and went before we looked: its end is in the queue,
        // so its beginning must be told.
        for (name, about) in queued {
            if !about.created {
                self.teller
                    .tell(EventType::EVENT_TYPE_CREATE, &path.join(name))?;
            }
        }
        directories.reverse();
        Ok(directories)
    }

    fn read_all(&self, dir: &OwnedFd, path: &Path) -> Result<Vec<Entry>, Stop> {
        let mut entries = Vec::new();
        loop {
            let some = match read_some(dir.as_fd()) {
                Ok(some) => some,
                Err(error) if can_be_skipped(error) => return Ok(entries),
                Err(error) => return Err(self.failed(error)),
            };
            if some.is_empty() {
                return Ok(entries);
            }
            if entries.len() + some.len() > ENTRIES_MAX {
                return Err(self.too_many(path));
            }
            for found in some {
                entries.push(self.entry(dir, &found));
            }
        }
    }

    fn entry(&self, dir: &OwnedFd, found: &Found) -> Entry {
        let name = OsStr::from_bytes(found.name.to_bytes()).to_owned();
        let mut is_directory = found.kind == FileType::Directory;
        let mut has_content = false;
        let is_open_question = match found.kind {
            FileType::Unknown => true,
            FileType::RegularFile => !self.teller.is_muted(),
            _ => false,
        };
        if is_open_question
            && let Ok(stat) = statat(dir, found.name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
        {
            let kind = FileType::from_raw_mode(stat.st_mode);
            is_directory = kind == FileType::Directory;
            has_content = kind == FileType::RegularFile && stat.st_size > 0;
        }
        Entry {
            name,
            is_directory,
            has_content,
        }
    }

    /// Watches the directory `name` in another one, if it is one.
    fn watch(&self, above: Descriptor, name: &OsStr) -> Result<Watched, Stop> {
        let Some(path) = self.tree.path(above) else {
            return Ok(Watched::Missing);
        };
        let path = path.join(name);
        let full = self.top_path.join(&path);
        let tried = self
            .open(&path)
            .and_then(|dir| Ok((self.inotify.add(&full, Links::Refuse)?, dir)));
        let (directory, dir) = match tried {
            Ok(tried) => tried,
            Err(error) if can_be_skipped(error) => return Ok(Watched::Missing),
            Err(error) => return Err(cannot_watch(&full, error).into()),
        };
        if self.tree.contains(directory) {
            return Ok(Watched::Known(directory));
        }
        if self.tree.len() >= DIRECTORIES_MAX {
            return Err(self.too_many(&path));
        }
        // The kernel takes a path only, and one above may have become a link
        // between our look and its.
        let same = fstat(&dir).and_then(|ours| Ok((ours, lstat(&full)?)));
        if !same.is_ok_and(|(ours, its)| Identity::of(&ours) == Identity::of(&its)) {
            self.inotify.remove(directory);
            return Ok(Watched::Missing);
        }
        Ok(Watched::New(directory, dir))
    }

    /// Opens a directory below the top, through no link.
    pub(super) fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let mut dir = openat(CWD, &self.top_path, DIRECTORY, Mode::empty())?;
        if Identity::of(&fstat(&dir)?) != self.top {
            return Err(Errno::STALE);
        }
        for name in path {
            dir = openat(&dir, name, DIRECTORY, Mode::empty())?;
        }
        Ok(dir)
    }

    fn too_many(&self, path: &Path) -> Stop {
        let full = self.top_path.join(path);
        WatchError::Directories(full.to_string_lossy().into_owned()).into()
    }
}
