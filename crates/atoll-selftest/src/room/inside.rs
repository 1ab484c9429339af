//! The room from within: a process that gives up its view of the host's mounts.

use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use rustix::process::{Signal, chroot, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{LEAKED, Order};
use crate::case::Namespace;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Reads an order from standard input, carries it out, and ends with its program
/// or with the end of standard input, whichever comes first.
pub(crate) fn enter() -> io::Result<ExitCode> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line).map_err(io::Error::other)?;
    let leaked = open_directory(order.canaries.parent().unwrap_or(&order.canaries))?;
    furnish(&order)?;
    let child = start(&order, leaked)?;
    watch(child)
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Mounts the root and moves into it.
fn furnish(order: &Order) -> io::Result<()> {
    let mut flags = UnshareFlags::NEWNS;
    for namespace in &order.namespaces {
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
    let inner = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    if !order.bare {
        for path in ["/proc", "/sys", "/dev"] {
            mount_bind_recursive(path, inner(Path::new(path)))?;
        }
    }
    mount(
        "atoll-selftest",
        inner(Path::new("/tmp")),
        "tmpfs",
        MountFlags::empty(),
        Some(c"mode=1777"),
    )?;
    let canaries = inner(&order.canaries);
    fs::create_dir_all(&canaries)?;
    mount_bind(&order.canaries, &canaries)?;
    std::env::set_current_dir(&root)?;
    if order.pivoted {
        rustix::process::pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
    } else {
        chroot(".")?;
    }
    std::env::set_current_dir("/")
}

fn start(order: &Order, leaked: OwnedFd) -> io::Result<Child> {
    let mut program = fs::File::from(memfd_create("program", MemfdFlags::CLOEXEC)?);
    program.write_all(order.program.as_bytes())?;
    program.rewind()?;
    let (leak, directory) = (order.leak, CString::new(order.directory.as_str())?);
    let mut command = Command::new("python3");
    command
        .args(["-I", "-"])
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::from(program));
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if leak {
            // SAFETY: duplicates a descriptor that lives; the number is free in the child.
            if unsafe { libc::dup2(leaked.as_raw_fd(), LEAKED) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(rustix::process::chdir(directory.as_c_str())?)
    };
    // SAFETY: only system calls, on memory that was allocated before the fork.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Waits for the program, or ends it when nobody waits for it any more.
fn watch(mut child: Child) -> io::Result<ExitCode> {
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::other("pid 0"))?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let stdin = io::stdin();
    let mut sources = [
        PollFd::new(&process, PollFlags::IN),
        PollFd::new(&stdin, PollFlags::IN),
    ];
    poll(&mut sources, None)?;
    if sources[0].revents().is_empty() {
        child.kill()?;
    }
    let status = child.wait()?;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1)))
}
