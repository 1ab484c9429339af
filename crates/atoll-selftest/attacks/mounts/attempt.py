# tried: {variant}, as root inside
# wall: seccomp refuses the mount calls; CAP_SYS_ADMIN is not among the capabilities
# wall-gvisor: CAP_SYS_ADMIN is not among the capabilities, and mounts are only gVisor's own
# control: room in mount
def done(name, result, error):
    if error == "ENOSYS":
        report(False, error, absent=f"`{name}` in its kernel")
    report(error is None, f"{name}: {error or 'done'}")


AT_FDCWD, CLONE, RECURSIVE = -100, 1, 0x8000
os.makedirs("/tmp/a", exist_ok=True)
os.makedirs("/tmp/b", exist_ok=True)


def mount(source, target, kind, flags=0, data=None):
    return call(165, source.encode(), target.encode(), kind.encode(), flags, data and data.encode() or 0)


def fsopen():
    return call(430, b"tmpfs", 0)


def detached():
    context, error = fsopen()
    if error:
        return context, error
    _, error = call(431, context, 6, 0, 0, 0)  # fsconfig(CREATE)
    return (context, error) if error else call(432, context, 0, 0)  # fsmount


def attached():
    tree, error = detached()
    return (tree, error) if error else call(429, tree, b"", AT_FDCWD, b"/tmp/a", 4)  # move_mount


def pivot():
    _, error = mount("none", "/tmp/a", "tmpfs")
    if error:
        return -1, error
    os.mkdir("/tmp/a/old")
    os.chdir("/tmp/a")
    return call(155, b".", b"old")


name, (result, error) = {
    "mounting-a-tmpfs": lambda: ("mount", mount("none", "/tmp/a", "tmpfs")),
    "mounting-a-fresh-proc": lambda: ("mount", mount("proc", "/tmp/a", "proc")),
    "mounting-a-fresh-sysfs": lambda: ("mount", mount("sysfs", "/tmp/a", "sysfs")),
    "mounting-cgroups": lambda: ("mount", mount("cgroup2", "/tmp/a", "cgroup2")),
    "mounting-an-overlay": lambda: ("mount", mount("o", "/tmp/a", "overlay", 0, "lowerdir=/usr:/etc")),
    "binding-the-root": lambda: ("mount", mount("/", "/tmp/a", "none", 0x1000)),
    "making-kernel-settings-writable": lambda: ("mount", mount("none", "/proc", "none", 0x20 | 0x1000)),
    "unmounting-masks": lambda: ("umount2", call(166, b"/proc", 2)),
    "opening-a-file-system": lambda: ("fsopen", fsopen()),
    "a-detached-mount": lambda: ("fsmount", detached()),
    "attaching-a-detached-mount": lambda: ("move_mount", attached()),
    "cloning-a-tree": lambda: ("open_tree", call(428, AT_FDCWD, b"/usr", CLONE | RECURSIVE)),
    "changing-a-mount": lambda: ("mount_setattr", call(442, AT_FDCWD, b"/proc", 0, (ctypes.c_ulong * 4)(), 32)),
    "another-root": lambda: ("pivot_root", pivot()),
}[TARGET["variant"]]()
done(name, result, error)
