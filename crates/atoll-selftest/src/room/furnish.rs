//! How the room comes to be: a tree that the host made, and what of the host is seen in it.
//!
//! Everything of the host is taken as a detached mount while paths still mean
//! files of the host. It is put in its place only after the tree has become
//! the root, and through no link: nothing in a tree can lead a mount or a new
//! directory astray.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount,
    mount_change, move_mount, open_tree, unmount,
};
use rustix::process::chroot;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::Order;
use crate::case::Namespace;

/// What is the host's in the room too.
const SHARED: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Mounts the root and moves into it.
pub(super) fn furnish(order: &Order) -> io::Result<()> {
    leave(&order.namespaces)?;
    let root = raise(order)?;
    let mut shared = Vec::new();
    if !order.bare {
        for path in SHARED {
            shared.push((path, taken(Path::new(path), OpenTreeFlags::AT_RECURSIVE)?));
        }
    }
    let canaries = taken(&order.canaries, OpenTreeFlags::empty())?;
    std::env::set_current_dir(&root)?;
    if order.pivoted {
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
    } else {
        chroot(".")?;
    }
    std::env::set_current_dir("/")?;
    for (path, tree) in &shared {
        put(tree, Path::new(path))?;
    }
    put(&temporary()?, Path::new("/tmp"))?;
    put(&canaries, &order.canaries)
}

/// Gives up the host's mount namespace, and others as asked for.
fn leave(namespaces: &[Namespace]) -> io::Result<()> {
    let mut flags = UnshareFlags::NEWNS;
    for namespace in namespaces {
        flags |= match namespace {
            Namespace::Cgroup => UnshareFlags::NEWCGROUP,
            Namespace::Ipc => UnshareFlags::NEWIPC,
            Namespace::Mount => UnshareFlags::NEWNS,
            Namespace::Net => UnshareFlags::NEWNET,
            Namespace::Uts => UnshareFlags::NEWUTS,
        };
    }
    // SAFETY: this process has one thread, and only its own view of the host changes.
    unsafe { unshare_unsafe(flags)? };
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    Ok(())
}

/// Mounts the layers with a tmpfs above, and returns where.
fn raise(order: &Order) -> io::Result<std::path::PathBuf> {
    // Short names for layers that may be many: one mount takes a page of options.
    let layers = order
        .layers
        .iter()
        .map(|layer| open_directory(layer))
        .collect::<io::Result<Vec<_>>>()?;
    let room = &order.room;
    mount(
        "atoll-selftest",
        room,
        "tmpfs",
        MountFlags::empty(),
        Some(c"mode=0755"),
    )?;
    let root = room.join("root");
    for name in ["root", "upper", "work"] {
        fs::create_dir(room.join(name))?;
    }
    let lower: Vec<String> = layers
        .iter()
        .map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd()))
        .collect();
    let options = CString::new(format!(
        "lowerdir={},upperdir={1}/upper,workdir={1}/work",
        lower.join(":"),
        room.display()
    ))?;
    mount(
        "atoll-selftest",
        &root,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )?;
    Ok(root)
}

pub(super) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// A copy of a mount of the host that is nowhere yet.
fn taken(path: &Path, depth: OpenTreeFlags) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(CWD, path, flags | depth)?)
}

/// A tmpfs that everybody may write to and that is nowhere yet.
fn temporary() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "atoll-selftest")?;
    fsconfig_set_string(&context, "mode", "1777")?;
    fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(fsmount(&context, flags, MountAttrFlags::empty())?)
}

/// Attaches `tree` at `path` of the root, which is made where it is missing.
fn put(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    let place = mount_point(path)
        .map_err(|error| io::Error::other(format!("no place for {}: {error}", path.display())))?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", &place, "", both)?)
}

/// Walks to a directory name by name, through no link; makes what is missing.
fn mount_point(path: &Path) -> io::Result<OwnedFd> {
    let mut place = open_directory(Path::new("/"))?;
    for part in path.components() {
        let name = match part {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            Component::Prefix(_) | Component::CurDir | Component::ParentDir => {
                return Err(io::Error::other("it is no plain path"));
            }
        };
        match mkdirat(&place, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        place = openat2(
            &place,
            name,
            OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        )?;
    }
    Ok(place)
}
