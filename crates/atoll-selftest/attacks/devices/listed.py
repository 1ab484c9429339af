# tried: finds devices of the host in `/dev`
# wall: `/dev` is a tmpfs with seven harmless devices
# wall-gvisor: gVisor's kernel makes a `/dev` of its own
# control: room
import stat
HARMLESS = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
if TARGET["tier"] == "gvisor":
    # File systems in user space of gVisor's own; gVisor itself has no `/dev` of the host.
    HARMLESS |= {"fuse"}
found = []
for name in os.listdir("/dev"):
    mode = os.lstat("/dev/" + name).st_mode
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and name not in HARMLESS:
        found.append(name)
report(found, sorted(found)[:8] if found else "none but harmless ones")
