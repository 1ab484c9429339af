# tried: reads {variant}, which speaks of the host
# wall: masked by an empty file or directory that belongs to the host
# wall-gvisor: gVisor's `/proc` and `/sys` are about itself
# control: room
path = {
    "kernel-memory": "/proc/kcore", "keys": "/proc/keys", "timers": "/proc/timer_list", "interrupts": "/proc/interrupts",
    "partitions": "/proc/partitions", "disk-statistics": "/proc/diskstats", "command-line": "/proc/cmdline",
    "soft-interrupts": "/proc/softirqs", "pressure": "/proc/pressure/cpu", "firmware": "/sys/firmware",
    "block-devices": "/sys/block", "machine": "/sys/class/dmi", "slabs": "/sys/kernel/slab", "ext4": "/sys/fs/ext4",
    "tracing": "/sys/kernel/tracing", "debugging": "/sys/kernel/debug", "backing-devices": "/sys/class/bdi",
}[TARGET["variant"]]
if not os.path.exists(path):
    report(False, "not there", absent=f"`{path}`")
if os.path.isdir(path):
    names = os.listdir(path)
    report(names, names[:4] if names else "an empty directory", absent=None if names else f"entries in `{path}`")
with open(path, "rb") as file:
    text = file.read(64)
if TARGET["tier"] == "gvisor" and path == "/proc/cmdline":
    report(text.decode().strip() == TARGET["command_line"][:64].strip(), f"{text[:24]!r}, which is gVisor's own")
report(text, repr(text[:24]) if text else "an empty file", absent=None if text else f"content of `{path}`")
