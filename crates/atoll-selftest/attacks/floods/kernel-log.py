# tried: writes lines into the log of the host's kernel
# wall: `/dev/kmsg` is not there and cannot be made
# wall-gvisor: gVisor's kernel has no log of the host
# control: room
import stat
path = "/dev/kmsg"
if not os.path.exists(path):
    path = "/tmp/kmsg"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 11))
os.close(os.open(path, os.O_WRONLY))
report(True, "open for writing; nothing was written")
