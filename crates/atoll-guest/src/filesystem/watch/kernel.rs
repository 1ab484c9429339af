//! inotify: the kernel's end of a watch.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// What one read of the kernel's queue may bring.
const READ_BYTES: usize = 64 * 1024;

/// What is asked of every watched directory. Files that have no name any
/// more are not told: a name is all that clients get.
const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);

/// How the kernel names a watched directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Descriptor(pub(super) i32);

/// Something the kernel says about a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelEvent {
    /// The directory.
    pub(super) directory: Descriptor,
    /// What happened.
    pub(super) flags: ReadFlags,
    /// Both ends of a move have the same.
    pub(super) cookie: u32,
    /// To what in the directory; to itself when there is no name.
    pub(super) name: Option<OsString>,
}

/// Whether a link may be the directory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Links {
    /// It leads to the directory.
    Follow,
    /// It is not the directory.
    Refuse,
}

/// A queue of events in the kernel.
pub(super) struct Inotify {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Inotify {
    /// A queue without watches.
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self {
            fd: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            buffer: Vec::with_capacity(READ_BYTES),
        })
    }

    /// Watches a directory. One that is watched already keeps its descriptor.
    pub(super) fn add(&self, path: &Path, links: Links) -> Result<Descriptor, Errno> {
        let mask = match links {
            Links::Follow => MASK,
            Links::Refuse => MASK | WatchFlags::DONT_FOLLOW,
        };
        inotify::add_watch(&self.fd, path, mask).map(Descriptor)
    }

    /// Stops watching a directory; it may be gone already.
    pub(super) fn remove(&self, directory: Descriptor) {
        let _ = inotify::remove_watch(&self.fd, directory.0);
    }

    /// Waits until there are events or `bell` is readable.
    pub(super) fn wait(&self, bell: &OwnedFd) -> Result<(), Errno> {
        let mut both = [
            PollFd::new(&self.fd, PollFlags::IN),
            PollFd::new(bell, PollFlags::IN),
        ];
        match poll(&mut both, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Hands over what one read brings. Says whether it brought anything.
    pub(super) fn read(&mut self, mut take: impl FnMut(KernelEvent)) -> Result<bool, Errno> {
        let mut reader = Reader::new(self.fd.as_fd(), self.buffer.spare_capacity_mut());
        loop {
            match reader.next() {
                Ok(event) => take(KernelEvent {
                    directory: Descriptor(event.wd()),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event
                        .file_name()
                        .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                }),
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
            if reader.is_buffer_empty() {
                return Ok(true);
            }
        }
    }
}
