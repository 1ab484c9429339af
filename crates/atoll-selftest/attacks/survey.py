# What a stranger finds out about the place it woke up in. Tries nothing that could do harm.
import glob, socket, stat

lines = []


def say(title, *findings):
    lines.append(f"{title}:")
    lines.extend(f"  {finding}" for finding in findings or ["none"])


def read(path, limit=4000):
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode(errors="replace").strip()
    except OSError as error:
        return f"({errno.errorcode.get(error.errno, error)})"


def status(key, text=read("/proc/self/status")):
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(key + ":")), "?")


# Which runtime?
marks = {
    "/.dockerenv": "docker", "/run/.containerenv": "podman", "/proc/vz": "openvz", "/run/secrets/kubernetes.io": "kubernetes",
    "/.atoll/guest": "atoll", "/proc/xen": "xen",
}
runtime = [name for path, name in marks.items() if os.path.exists(path)]
if "gVisor" in read("/proc/version") or "gVisor" in read("/proc/1/environ"):
    runtime.append("gvisor")
say("container runtime", ", ".join(runtime) or "unknown")
say("kernel", os.uname().release.split("-")[0])
say("who", f"uid {os.getuid()}, groups {os.getgroups()}", f"uid map {' '.join(read('/proc/self/uid_map').split())}")
say("PID 1", read("/proc/1/cmdline").replace("\0", " "))

# Rights.
NAMES = (
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service "
    "net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin "
    "sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override "
    "mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore").split()
for name in ("CapEff", "CapBnd", "CapAmb"):
    # gVisor does not tell of every set.
    value = int(status(name).replace("?", "0"), 16)
    held = [capability for number, capability in enumerate(NAMES) if value >> number & 1]
    say(f"capabilities ({name})", f"{len(held)} of {len(NAMES)}: {' '.join(held)}" if held else "none")
mode = {"0": "disabled", "1": "strict", "2": "filter"}.get(status("Seccomp"), "?")
say("seccomp", f"{mode}, {status('Seccomp_filters')} filters" if mode != "disabled" else "none")
say("no new privileges", status("NoNewPrivs"))
say("security module", read("/proc/self/attr/current") or "none")

# Calls: with arguments that mean nothing, and not those that would end or change this process.
SKIP = {
    13, 14, 15, 22, 23, 34, 35, 56, 57, 58, 59, 60, 61, 62, 101, 112, 128, 130, 153, 162, 169, 200, 202, 219, 230, 231,
    232, 234, 235, 247, 270, 271, 281, 293, 317, 322, 424, 435, 436, 441, 444, 446, 449, 451, 453, 454, 455, 456,
}
blocked = {"EPERM": [], "ENOSYS": []}
tried = 0
for number in range(0, 463):
    if number in SKIP or 335 <= number <= 423:
        continue
    pid = os.fork()
    if pid == 0:
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        libc.alarm(2)
        _, error = call(number, -1, -1, -1, -1, -1, -1)
        os._exit({"EPERM": 1, "ENOSYS": 2}.get(error, 0))
    _, end = os.waitpid(pid, 0)
    tried += 1
    kind = {1: "EPERM", 2: "ENOSYS"}.get(os.waitstatus_to_exitcode(end))
    if kind:
        blocked[kind].append(number)
for kind, numbers in blocked.items():
    say(f"system calls answered with {kind} ({len(numbers)} of {tried} tried)", " ".join(map(str, numbers)) or "none")

# Namespaces, cgroups.
say("namespaces", " ".join(f"{name}:{os.readlink('/proc/self/ns/' + name).split(':')[1]}" for name in sorted(os.listdir("/proc/self/ns"))))
say("user namespaces allowed", read("/proc/sys/user/max_user_namespaces"))
say("cgroups", *sorted({line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines()}))
files = glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True) + glob.glob("/sys/fs/cgroup/cgroup.procs")
say("writable cgroup files", *[path for path in files if os.access(path, os.W_OK)])

# Mounts and devices.
mounts = [line.split() for line in read("/proc/self/mounts", 40000).splitlines()]
say("mounts", *[f"{entry[1]} {entry[2]} {entry[3].split(',')[0]}" for entry in mounts if len(entry) > 3])
devices = [name for name in os.listdir("/dev") if stat.S_ISCHR(os.lstat("/dev/" + name).st_mode) or stat.S_ISBLK(os.lstat("/dev/" + name).st_mode)]
say("devices", " ".join(sorted(devices)))

# Doors.
doors = ["/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket",
         "/run/systemd/private", "/run/snapd.socket", "/run/atoll"]
say("sockets of the host", *[path for path in doors if os.path.exists(path)])
sockets = [line.split()[-1] for line in read("/proc/net/unix").splitlines()[1:] if len(line.split()) > 7]
say("Unix sockets", *sockets)
listeners = [int(line.split()[1].split(":")[1], 16) for line in read("/proc/net/tcp").splitlines()[1:] if line.split()[3] == "0A"]
say("listeners", " ".join(map(str, listeners)) or "none")
say("interfaces", " ".join(sorted(os.listdir("/sys/class/net"))) if os.path.isdir("/sys/class/net") else "?")


def answers(address, port):
    try:
        socket.create_connection((address, port), timeout=1).close()
        return True
    except OSError:
        return False


say("cloud metadata", "169.254.169.254 answers" if answers("169.254.169.254", 80) else "no answer")
say("descriptors", *[f"{name} {os.readlink('/proc/self/fd/' + name)}" for name in sorted(os.listdir("/proc/self/fd"), key=int)
                     if os.path.lexists("/proc/self/fd/" + name)])

# Files worth a look.
say("secrets of others", *[path for path in (
    "/root/.ssh", "/root/.aws", "/root/.kube", "/root/.docker/config.json", "/var/run/secrets", "/etc/kubernetes",
    "/proc/1/environ") if os.access(path, os.R_OK)])
setuid = []
for directory in ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local"):
    for path in glob.glob(directory + "/*"):
        try:
            if os.lstat(path).st_mode & stat.S_ISUID:
                setuid.append(path)
        except OSError:
            pass
say("set-user-id programs", *sorted(set(os.path.realpath(path) for path in setuid)))
say("kernel settings that can be written", *[path for path in (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/net/ipv4/ip_forward", "/sys/kernel/uevent_helper") if os.path.exists(path) and os.access(path, os.W_OK)])
report(True, "\n".join(lines))
