# tried: makes the node of {variant} and opens it
# wall: `mknod` of devices is refused in a user namespace; the disk is mounted `nodev`, the cgroup lists devices
# wall-gvisor: gVisor's kernel has no drivers of the host
# control: room
import stat
kind, major, minor = {
    "the-hosts-disk": (stat.S_IFBLK, *(TARGET["device"] or (0, 0))),
    "the-kernel-log": (stat.S_IFCHR, 1, 11),
    "kvm": (stat.S_IFCHR, 10, 232),
    "fuse": (stat.S_IFCHR, 10, 229),
    "a-tunnel": (stat.S_IFCHR, 10, 200),
    "loop-control": (stat.S_IFCHR, 10, 237),
    "a-virtual-console": (stat.S_IFCHR, 4, 1),
}[TARGET["variant"]]
if not major:
    report(False, "no device", absent="block device that its root may open")
path = "/tmp/node"
os.mknod(path, kind | 0o600, os.makedev(major, minor))
try:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    read = os.read(descriptor, 16) if stat.S_ISBLK(kind) else b""
    report(True, f"device {major}:{minor} opened {read[:4].hex()}")
except OSError as error:
    missing = error.errno in (errno.ENXIO, errno.ENODEV)
    report(False, error, absent="such a device" if missing else None)
finally:
    os.unlink(path)
