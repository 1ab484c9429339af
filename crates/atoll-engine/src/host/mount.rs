//! Mounts, built from file descriptors so that nothing is attached before it is as it should be.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam: each call here stands between the failpoints of a host object"
)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount, mount_change, move_mount, open_tree, unmount,
};

use super::process::in_child;
use super::{HostObject, creates};

/// Gives this process a mount namespace of its own, into which mounts of the
/// host still arrive but from which none go back. All mounts of a sandbox
/// live there, so that they end with the processes that use them.
pub(crate) fn private_mount_namespace() -> io::Result<()> {
    // SAFETY: the monitor is single-threaded; only its own view of mounts changes.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    Ok(mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?)
}

/// `struct mount_attr` of `mount_setattr(2)`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `mount(2)` takes one page of options.
const MOUNT_OPTIONS_LIMIT: usize = 4096;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// Access of a cloned tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

fn set_attributes(
    tree: BorrowedFd<'_>,
    flags: MountAttrFlags,
    ids: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attributes = MountAttributes {
        set: u64::from(flags.bits()) | if ids.is_some() { MOUNT_ATTR_IDMAP } else { 0 },
        clear: 0,
        propagation: 0,
        user_namespace: ids.map_or(0, |fd| u64::from(fd.as_raw_fd().unsigned_abs())),
    };
    // SAFETY: the descriptor, the empty path and the structure live through the call, and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A detached copy of the tree at `path`, with owners translated by `ids`.
pub(crate) fn cloned_tree(
    path: &Path,
    access: Access,
    ids: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let tree = open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    let flags = match access {
        Access::ReadOnly => MountAttrFlags::MOUNT_ATTR_RDONLY,
        Access::ReadWrite => MountAttrFlags::empty(),
    };
    set_attributes(tree.as_fd(), flags, ids)?;
    Ok(tree)
}

/// Mounts the ext4 file system on `device` at `target`, closed for set-id
/// programs and devices on the host's side.
pub(crate) fn ext4(device: &str, target: &Path) -> io::Result<()> {
    creates(HostObject::DiskMount, || {
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let made = (|| {
            fsconfig_set_string(context.as_fd(), "source", device)?;
            fsconfig_set_flag(context.as_fd(), "discard")?;
            fsconfig_set_flag(context.as_fd(), "noinit_itable")?;
            fsconfig_create(context.as_fd())?;
            fsmount(
                context.as_fd(),
                FsMountFlags::FSMOUNT_CLOEXEC,
                MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
            )
        })();
        let mount = made.map_err(|error| with_kernel_log(context.as_fd(), error.into()))?;
        Ok(move_mount(
            mount.as_fd(),
            "",
            CWD,
            target,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?)
    })
}

/// Attaches a detached tree at `target`, which is made.
fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    Ok(move_mount(
        tree.as_fd(),
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Mounts an overlay of `layers` (top first) with the writable `upper` and
/// `work` below the tree `disk`, or read-only without one, at `target`. The
/// trees are attached below `staging` while it is made: overlays of detached
/// trees need Linux 6.15.
pub(crate) fn overlay(
    layers: &[OwnedFd],
    disk: Option<&OwnedFd>,
    staging: &Path,
    target: &Path,
) -> io::Result<()> {
    creates(HostObject::RootMount, || {
        let mut attached = Vec::with_capacity(layers.len() + 1);
        let made = (|| {
            let mut lower = Vec::with_capacity(layers.len());
            for (number, layer) in layers.iter().enumerate() {
                let place = staging.join(number.to_string());
                attach(layer, &place)?;
                lower.push(place.display().to_string());
                attached.push(place);
            }
            let lower = lower.join(":");
            let (options, flags) = match disk {
                Some(disk) => {
                    let place = staging.join("w");
                    attach(disk, &place)?;
                    attached.push(place.clone());
                    let options = format!(
                        "redirect_dir=on,lowerdir={lower},upperdir={0}/upper,workdir={0}/work",
                        place.display()
                    );
                    (options, MountFlags::NODEV)
                }
                None => (
                    format!("lowerdir={lower}"),
                    MountFlags::NODEV | MountFlags::RDONLY,
                ),
            };
            if options.len() >= MOUNT_OPTIONS_LIMIT {
                return Err(io::Error::other(format!(
                    "{} layers are more than one mount can name",
                    layers.len()
                )));
            }
            let options = CString::new(options)?;
            Ok(mount(
                "atoll",
                target,
                "overlay",
                flags,
                Some(options.as_c_str()),
            )?)
        })();
        // The overlay holds what it needs; the way to it is closed.
        for place in attached {
            unmount(&place, UnmountFlags::DETACH)?;
        }
        made?;
        // An overlay that cannot write its work directory mounts read-only without an error.
        let is_read_only = rustix::fs::statvfs(target)?
            .f_flag
            .contains(rustix::fs::StatVfsMountFlags::RDONLY);
        if disk.is_some() && is_read_only {
            return Err(io::Error::other(
                "the kernel mounted the root file system read-only",
            ));
        }
        Ok(())
    })
}

/// What the kernel wrote about a failed mount, added to the error.
fn with_kernel_log(context: BorrowedFd<'_>, error: io::Error) -> io::Error {
    let mut text = [0_u8; 512];
    match rustix::io::read(context, &mut text) {
        Ok(length) if length > 0 => {
            let detail = String::from_utf8_lossy(&text[..length]);
            io::Error::new(error.kind(), format!("{error} ({})", detail.trim()))
        }
        _ => error,
    }
}

/// Removes the mount at `target`; one that is still busy is detached.
pub(crate) fn remove(target: &Path) -> io::Result<()> {
    match unmount(target, UnmountFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Ok(unmount(target, UnmountFlags::DETACH)?),
        Err(error) => Err(error.into()),
    }
}

/// Something to place into a container between its creation and its start.
pub(crate) enum InnerMount<'a> {
    /// A host file, read-only, over an existing file.
    File { source: &'a Path, target: &'a CStr },
    /// `sysfs` of the container's own network namespace, read-only.
    Sysfs { target: &'a CStr },
    /// An empty read-only directory over one that should not be seen.
    Mask { target: &'a CStr },
}

/// Places `mounts` into the mount namespace of the process behind `pidfd`.
/// They belong to the host, so nobody inside can remove them.
pub(crate) fn into_container(pidfd: BorrowedFd<'_>, mounts: &[InnerMount<'_>]) -> io::Result<()> {
    use rustix::thread::ThreadNameSpaceType as Kind;
    let quiet = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    creates(HostObject::InnerMount, || {
        in_child(|| {
            super::process::enter(pidfd, Kind::NETWORK)?;
            let mut ready = Vec::with_capacity(mounts.len());
            for mount in mounts {
                ready.push(match mount {
                    InnerMount::File { source, target } => {
                        let tree = open_tree(
                            CWD,
                            *source,
                            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
                        )?;
                        set_attributes(tree.as_fd(), quiet, None)?;
                        (tree, *target)
                    }
                    InnerMount::Sysfs { target } => (new_filesystem("sysfs", &[], quiet)?, *target),
                    InnerMount::Mask { target } => (
                        new_filesystem("tmpfs", &[("size", "0"), ("nr_inodes", "1")], quiet)?,
                        *target,
                    ),
                });
            }
            super::process::enter(pidfd, Kind::MOUNT)?;
            for (mount, target) in ready {
                match move_mount(
                    mount.as_fd(),
                    "",
                    CWD,
                    target,
                    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
                ) {
                    Ok(()) => {}
                    // A path to hide that this kernel does not have hides itself.
                    Err(rustix::io::Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        })
    })
}

fn new_filesystem(
    kind: &str,
    options: &[(&str, &str)],
    flags: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        flags,
    )?)
}

/// Mounts a small tmpfs at `target`, for files that must not show the host's disk.
pub(crate) fn small_tmpfs(target: &Path) -> io::Result<()> {
    creates(HostObject::ScratchMount, || {
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = new_filesystem(
            "tmpfs",
            &[("size", "1m"), ("nr_inodes", "32"), ("mode", "0755")],
            flags,
        )?;
        Ok(move_mount(
            mount.as_fd(),
            "",
            CWD,
            target,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )?)
    })
}

/// Mounts `/proc` anew, for the pid namespace of this process; and once more
/// at `whole`, where nothing is ever hidden: a process in a user namespace may
/// mount `/proc` only where it can see one without gaps.
pub(crate) fn fresh_proc(whole: &Path) -> io::Result<()> {
    std::fs::create_dir_all(whole)?;
    for target in [whole, Path::new("/proc")] {
        attach_new("proc", target)?;
    }
    Ok(())
}

/// Hides from runsc the settings that it takes for a sign of the host's own
/// network namespace: on newer kernels every namespace has them. Which ones
/// are seen depends on the namespace of who looks, so this is called in the
/// sandbox's.
pub(crate) fn hide_host_network_sign() -> io::Result<()> {
    attach_new("tmpfs", Path::new("/proc/sys/net/core"))
}

fn attach_new(kind: &str, target: &Path) -> io::Result<()> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let fresh = new_filesystem(kind, &[], flags)?;
    Ok(move_mount(
        fresh.as_fd(),
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}
