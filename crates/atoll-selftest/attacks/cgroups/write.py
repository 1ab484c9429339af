# tried: opens {variant} for writing, which would lift its limits or run a program on the host
# wall: no cgroup file system is mounted inside, and none can be
# wall-gvisor: gVisor's kernel has no cgroups of the host
# control: room
import glob
# `root` of a hierarchy, so that nothing of anybody is chosen; nothing is written.
patterns = {
    "release-agent": ("release_agent",),
    "notify-on-release": ("notify_on_release", "cgroup.subtree_control"),
    "members": ("cgroup.procs",),
    "memory-limit": ("memory/*/memory.limit_in_bytes", "*/memory.max", "memory.soft_limit_in_bytes"),
    "device-list": ("devices.allow", "cgroup.procs"),
}[TARGET["variant"]]
found = []
for pattern in patterns:
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/*"):
        found += glob.glob(f"{base}/{pattern}")
if not found:
    present = os.path.isdir("/sys/fs/cgroup") and os.listdir("/sys/fs/cgroup")
    report(False, "no such file", absent=f"`{patterns[0]}` (cgroup version 2)" if present else None)
os.close(os.open(found[0], os.O_WRONLY))
report(True, f"{found[0]} is open for writing")
