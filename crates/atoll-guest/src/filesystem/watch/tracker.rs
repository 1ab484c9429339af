//! From the kernel's events to those of clients.
//!
//! The kernel tells what happens in one directory at a time, by name. Here
//! names become paths, and moves are followed; `discovery` finds what appears.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use atoll_protocol::envd::filesystem::{EventType, FilesystemEvent};
use rustix::fs::inotify::ReadFlags;
use rustix::fs::{CWD, Mode, OFlags, fstat, fstatfs, openat};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};

use super::super::descent::Identity;
use super::super::error::{FilesystemError, failed};
use super::kernel::{Descriptor, Inotify, KernelEvent, Links};
use super::teller::{Stop, Teller};
use super::tree::Tree;
use super::{Bell, Order, Reach, WatchError};

/// Events taken from the kernel and not handled yet.
const PENDING_MAX: usize = 32 * 1024;

/// File systems on which other machines work unseen: NFS, CIFS, SMB2, FUSE.
const NETWORK_FILESYSTEMS: [u64; 4] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546];

/// Follows a directory and what is below it.
pub(super) struct Tracker {
    pub(super) inotify: Inotify,
    pub(super) tree: Tree,
    reach: Reach,
    /// Which directory the top is. Not kept open: the kernel tells the end of
    /// a directory when the last who has it open lets go.
    pub(super) top: Identity,
    pub(super) top_path: PathBuf,
    pub(super) pending: VecDeque<KernelEvent>,
    /// Directories of which the new place is not known yet, by the cookie of
    /// the move.
    moving: HashMap<u32, Descriptor>,
    /// Directories that were not where the events so far say they are. They
    /// are gone, and an event about that is on its way, or one above them was
    /// moved, and they are looked for again when that is told.
    pub(super) missed: BTreeSet<(Descriptor, OsString)>,
    pub(super) teller: Teller,
}

impl Tracker {
    /// Sets the watch.
    pub(super) fn start(
        order: Order,
        sender: mpsc::Sender<Result<FilesystemEvent, WatchError>>,
    ) -> Result<Self, WatchError> {
        let path = order.path.as_str();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => FilesystemError::PathNotFound(path.to_owned()),
            Errno::NOTDIR => FilesystemError::NotADirectory(path.to_owned()),
            error => failed("open", path)(error),
        })?;
        let magic = fstatfs(&top).map_err(failed("statfs", path))?.f_type;
        let identity = Identity::of(&fstat(&top).map_err(failed("stat", path))?);
        drop(top);
        if !order.allow_network_mounts && is_network(magic) {
            return Err(WatchError::Network(order.path));
        }
        let top_path = std::fs::canonicalize(path).map_err(|error| FilesystemError::Io {
            operation: "resolve",
            path: path.to_owned(),
            error,
        })?;
        let inotify = Inotify::new().map_err(|error| match error {
            Errno::MFILE => WatchError::Instances,
            error => cannot_watch(&top_path, error),
        })?;
        let directory = inotify
            .add(&top_path, Links::Follow)
            .map_err(|error| cannot_watch(&top_path, error))?;
        let mut tracker = Self {
            inotify,
            tree: Tree::new(directory),
            reach: order.reach,
            top: identity,
            top_path,
            pending: VecDeque::new(),
            moving: HashMap::new(),
            missed: BTreeSet::new(),
            teller: Teller::muted(&order, sender),
        };
        match tracker.settle(directory) {
            Ok(()) => Ok(tracker),
            Err(Stop::Failed(error)) => Err(error),
            // Nobody will hear this.
            Err(Stop::Closed) => Err(WatchError::Lost),
        }
    }

    /// Watches what is below the top, and takes in what happens meanwhile.
    fn settle(&mut self, directory: Descriptor) -> Result<(), Stop> {
        if self.reach == Reach::Tree {
            let top = self
                .open(Path::new(""))
                .map_err(|error| self.failed(error))?;
            self.look_into(directory, &top)?;
        }
        self.take_queue()?;
        // Only so many: somebody may never stop.
        for _ in 0..self.pending.len() {
            if let Some(event) = self.pending.pop_front() {
                self.handle(event)?;
            }
        }
        self.teller.unmute();
        Ok(())
    }

    /// Tells what happens until nobody listens or it cannot go on.
    pub(super) fn run(mut self, bell: &Bell) {
        let mut rang = Vec::new();
        let end = loop {
            if let Err(end) = self.step(bell, &mut rang) {
                break end;
            }
        };
        let Self {
            teller, inotify, ..
        } = self;
        // The client may take its time to hear the reason.
        drop((inotify, rang));
        if let Stop::Failed(error) = end {
            teller.fail(error);
        }
    }

    /// Tells what one read of the kernel's queue brings, and to those who
    /// rang when there is nothing left of what happened before.
    fn step(&mut self, bell: &Bell, rang: &mut Vec<oneshot::Sender<()>>) -> Result<(), Stop> {
        if rang.is_empty() {
            self.inotify
                .wait(&bell.fd)
                .map_err(|error| self.failed(error))?;
        }
        rang.append(&mut bell.answer());
        let more = self.inotify.read(|event| self.pending.push_back(event));
        let more = more.map_err(|error| self.failed(error))?;
        while let Some(event) = self.pending.pop_front() {
            self.handle(event)?;
        }
        if !more {
            for told in rang.drain(..) {
                let _ = told.send(());
            }
        }
        self.teller.check()
    }

    /// Takes over all that the kernel has queued.
    pub(super) fn take_queue(&mut self) -> Result<(), Stop> {
        loop {
            let more = self.inotify.read(|event| self.pending.push_back(event));
            if !more.map_err(|error| self.failed(error))? {
                return Ok(());
            }
            if self.pending.len() > PENDING_MAX {
                return Err(WatchError::Lost.into());
            }
        }
    }

    fn handle(&mut self, event: KernelEvent) -> Result<(), Stop> {
        let flags = event.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(WatchError::Lost.into());
        }
        let Some(name) = event.name else {
            return self.handle_itself(event.directory, flags);
        };
        let Some(path) = self.tree.path(event.directory) else {
            // Of a directory that is not below the top any more.
            return Ok(());
        };
        let kind = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            EventType::EVENT_TYPE_CREATE
        } else if flags.contains(ReadFlags::MODIFY) {
            EventType::EVENT_TYPE_WRITE
        } else if flags.contains(ReadFlags::DELETE) {
            EventType::EVENT_TYPE_REMOVE
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            EventType::EVENT_TYPE_RENAME
        } else if flags.contains(ReadFlags::ATTRIB) {
            EventType::EVENT_TYPE_CHMOD
        } else {
            return Ok(());
        };
        self.teller.tell(kind, &path.join(&name))?;
        if self.reach == Reach::Directory {
            return Ok(());
        }
        let is_directory = flags.contains(ReadFlags::ISDIR);
        match kind {
            EventType::EVENT_TYPE_CREATE if is_directory => {
                let moved = flags
                    .contains(ReadFlags::MOVED_TO)
                    .then(|| self.moving.remove(&event.cookie))
                    .flatten();
                self.appeared(event.directory, name, moved)
            }
            EventType::EVENT_TYPE_REMOVE | EventType::EVENT_TYPE_RENAME => {
                if let Some(gone) = self.tree.child(event.directory, &name) {
                    self.tree.detach(gone);
                    if flags.contains(ReadFlags::MOVED_FROM) {
                        self.moving.insert(event.cookie, gone);
                    }
                }
                self.missed.remove(&(event.directory, name));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Something happened to a watched directory itself. Only of the top it
    /// is told here: of the others the one above tells it by name.
    fn handle_itself(&mut self, directory: Descriptor, flags: ReadFlags) -> Result<(), Stop> {
        if flags.contains(ReadFlags::IGNORED) {
            self.tree.forget(directory);
            self.missed.retain(|(above, _)| *above != directory);
            return Ok(());
        }
        let itself = Path::new("");
        if directory != self.tree.top() {
            // Told after both ends of the move: it went out of the tree.
            if flags.contains(ReadFlags::MOVE_SELF) && self.tree.is_detached(directory) {
                self.abandon(directory);
            }
        } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT) {
            self.teller.tell(EventType::EVENT_TYPE_REMOVE, itself)?;
        } else if flags.contains(ReadFlags::MOVE_SELF) {
            self.teller.tell(EventType::EVENT_TYPE_RENAME, itself)?;
            // Another directory may have its path now, and the paths of
            // events would not be where clients look.
            self.abandon(directory);
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.teller.tell(EventType::EVENT_TYPE_CHMOD, itself)?;
        }
        Ok(())
    }

    /// Stops watching a directory with all below it.
    fn abandon(&mut self, directory: Descriptor) {
        let all = self.tree.forget_all(directory);
        for directory in &all {
            self.inotify.remove(*directory);
        }
        self.moving.retain(|_, moving| !all.contains(moving));
        self.missed.retain(|(above, _)| self.tree.contains(*above));
    }

    /// The end of the watch by what the kernel says.
    pub(super) fn failed(&self, error: Errno) -> Stop {
        cannot_watch(&self.top_path, error).into()
    }
}

/// The error for what the kernel says of a watch.
pub(super) fn cannot_watch(path: &Path, error: Errno) -> WatchError {
    let path = path.to_string_lossy().into_owned();
    match error {
        Errno::NOSPC => WatchError::Directories(path),
        error => WatchError::Io {
            path,
            error: error.into(),
        },
    }
}

fn is_network(magic: impl TryInto<i64>) -> bool {
    // The kernel's words are signed or not, wide or not, by architecture.
    magic.try_into().is_ok_and(|magic| {
        NETWORK_FILESYSTEMS
            .iter()
            .any(|&network| i64::try_from(network) == Ok(magic & 0xffff_ffff))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_filesystems_are_known_whatever_the_kernels_word_is() {
        for magic in [
            0x6969_i64,
            0xff53_4d42,
            0xfe53_4d42,
            0x6573_5546,
            -11_317_950,
        ] {
            assert!(is_network(magic), "{magic:x}");
        }
        // ext4, tmpfs, overlay.
        for magic in [0xef53_i64, 0x0102_1994, 0x794c_7630] {
            assert!(!is_network(magic), "{magic:x}");
        }
    }
}
