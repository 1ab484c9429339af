# tried: learns the name of its cgroup on the host
# wall: a cgroup namespace
# wall-gvisor: gVisor's kernel has cgroups of its own
# control: room
with open("/proc/self/cgroup") as file:
    paths = [line.strip().split(":", 2)[2] for line in file]
with open("/proc/1/cgroup") as file:
    first = file.read()
with open("/proc/self/mountinfo") as file:
    mounted = "cgroup" in file.read()
report(any(path != "/" for path in paths) or mounted, f"paths {sorted(set(paths))}, mounted: {mounted}")
