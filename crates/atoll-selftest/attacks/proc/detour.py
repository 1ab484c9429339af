# tried: reads a masked file by other names: through `root` and `cwd` links, descriptors and `..`
# wall: a mask is a mount over the file: every name leads to it
# wall-gvisor: gVisor's `/proc` is about itself
# control: room
MASKED = "partitions"
directory = os.open("/proc", os.O_RDONLY)
os.chdir("/proc")
ways = {
    "root link": f"/proc/self/root/proc/{MASKED}", "thread": f"/proc/thread-self/root/proc/{MASKED}",
    "working directory": f"/proc/self/cwd/{MASKED}", "descriptor": f"/proc/self/fd/{directory}/{MASKED}",
    "parent": f"/proc/self/../{MASKED}", "PID 1": f"/proc/1/root/proc/{MASKED}",
}
for name, path in ways.items():
    try:
        with open(path) as file:
            if file.read(100):
                report(True, f"by {name}")
    except OSError:
        pass
report(False, "empty by every name")
