# tried: looks for a process of the host by its arguments
# wall: a pid namespace
# control: room
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if TARGET["marker"].removeprefix("atoll-selftest-").encode() in file.read():
                report(True, f"process {pid}")
    except OSError:
        pass
report(False, f"not among {len(os.listdir('/proc'))} entries")
