# tried: finds paths of the host in its table of mounts
# wall: all mounts are made in the monitor's private namespace, of an image and of tmpfs
# wall-gvisor: gVisor shows mounts of its own
# control: room
home = os.path.dirname(os.path.dirname(os.path.dirname(TARGET["directory"])))
with open("/proc/self/mountinfo") as table:
    hits = [line.strip() for line in table if home in line]
report(hits, hits[0] if hits else "no path of the host")
