"""Who am I, where am I, and what can I see from here? Run it with `atoll run examples/hello.py`."""

import os
import platform
import pwd
import socket
from pathlib import Path


def limit(*files: str) -> str:
    """The first limit that can be read and is one, in MiB."""
    for file in files:
        try:
            value = int(Path(file).read_text())
        except (OSError, ValueError):
            continue
        if value < 1 << 50:
            return f"{value >> 20} MiB"
    return "set by the host, not shown in here"


def secrets() -> str:
    """Whether places where a host keeps its secrets can be read, even as root."""
    places = ["/etc/shadow", "/root/.ssh", "/var/lib/atoll"]
    found = [place for place in places if os.access(place, os.R_OK)]
    return ", ".join(found) or "none of the host's"


user = pwd.getpwuid(os.getuid())
processes = [entry for entry in os.listdir("/proc") if entry.isdigit()]
disk = os.statvfs(Path.home())
free_mib = disk.f_bavail * disk.f_frsize >> 20

print(f"Hello from {socket.gethostname()}")
print(f"  user        {user.pw_name} (uid {user.pw_uid}), home {user.pw_dir}")
print(f"  python      {platform.python_version()}")
print(f"  kernel      {platform.release()}")
print(f"  processes   {len(processes)} in sight: this program and what keeps it")
print(f"  secrets     {secrets()}")
print(f"  memory      {limit('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')}")
# gVisor does not tell how much its files may still grow.
print(f"  disk        {f'{free_mib} MiB free' if free_mib < 1 << 30 else 'set by the host, not shown in here'}")
print(f"  network     {', '.join(name for _, name in socket.if_nameindex())}")
