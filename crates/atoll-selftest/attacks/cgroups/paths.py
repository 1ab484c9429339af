# tried: learns the name of its cgroup on the host
# wall: a cgroup namespace
# wall-gvisor: gVisor's kernel has cgroups of its own
# control: room
with open("/proc/self/cgroup") as file:
    paths = [line.strip().split(":", 2)[2] for line in file]
# Its own name, which is no secret, and the root of its namespace tell nothing.
told = {part for path in paths for part in path.split("/")} - {"", "..", os.uname().nodename}
with open("/proc/self/mountinfo") as file:
    mounted = "cgroup" in file.read()
report(told or mounted, f"paths {sorted(set(paths))}, mounted: {mounted}")
