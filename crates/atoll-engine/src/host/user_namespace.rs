//! User namespaces, made by a child that enters one and waits while the parent
//! writes its maps.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::{HostObject, creates};

/// A namespace that exists only to translate owners on mounts: `0..65536`
/// inside is `base..` outside. The host's root appears as 65536, because the
/// overlay's own writes are made as host root.
pub(crate) fn for_mounts(base: u32) -> io::Result<OwnedFd> {
    creates(HostObject::IdMapNamespace, || {
        make(None, &format!("0 {base} 65536\n65536 0 1\n"))
    })
}

/// The namespace of a sandbox: `0..65536` inside is `base..` outside.
///
/// It belongs to `base` and not to the host's root, so that what the kernel
/// counts per user (inotify instances, queued signals, message queues) is
/// counted for this sandbox alone.
pub(crate) fn for_sandbox(base: u32) -> io::Result<OwnedFd> {
    creates(HostObject::UserNamespace, || {
        make(Some(base), &format!("0 {base} 65536\n"))
    })
}

fn make(owner: Option<u32>, map: &str) -> io::Result<OwnedFd> {
    let (ready_reader, ready_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (done_reader, done_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: the caller is single-threaded; the child only makes system calls and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        drop(done_writer);
        let answer = match enter(owner) {
            Ok(()) => 0,
            Err(error) => {
                u8::try_from(error.raw_os_error().unwrap_or(libc::EIO)).unwrap_or(u8::MAX)
            }
        };
        let _ = rustix::io::write(&ready_writer, &[answer]);
        let mut byte = [0_u8; 1];
        let _ = rustix::io::read(&done_reader, &mut byte);
        // SAFETY: ends only the child.
        unsafe { libc::_exit(0) }
    }
    drop(ready_writer);
    let namespace = (|| {
        let mut answer = [u8::MAX; 1];
        rustix::io::read(&ready_reader, &mut answer)?;
        if answer != [0] {
            let reason = io::Error::from_raw_os_error(i32::from(answer[0]));
            return Err(io::Error::new(
                reason.kind(),
                format!("the kernel refuses a user namespace: {reason}"),
            ));
        }
        std::fs::write(format!("/proc/{pid}/uid_map"), map)?;
        std::fs::write(format!("/proc/{pid}/gid_map"), map)?;
        let path = format!("/proc/{pid}/ns/user");
        Ok(openat(
            CWD,
            path,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    })();
    drop(done_writer);
    let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    namespace
}

/// Moves this process, a single-threaded child, into a new user namespace that belongs to `owner`.
fn enter(owner: Option<u32>) -> io::Result<()> {
    if let Some(owner) = owner {
        rustix::thread::set_keep_capabilities(true)?;
        // SAFETY: changes only this child.
        if unsafe {
            libc::setresgid(owner, owner, owner) != 0 || libc::setresuid(owner, owner, owner) != 0
        } {
            return Err(io::Error::last_os_error());
        }
        // The right to make namespaces, also where ordinary users have none.
        let needed = CapabilitySet::SYS_ADMIN;
        let permitted = capabilities(None)?.permitted;
        let inheritable = CapabilitySet::empty();
        set_capabilities(
            None,
            CapabilitySets {
                effective: needed,
                permitted,
                inheritable,
            },
        )?;
    }
    // SAFETY: changes only this single-threaded child.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
