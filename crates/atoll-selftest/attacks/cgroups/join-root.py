# tried: leaves its cgroup for the root of the hierarchy
# wall: no cgroup file system is mounted inside, and a cgroup namespace hides the rest
# wall-gvisor: gVisor's kernel has no cgroups of the host
# control: room
import glob
files = glob.glob("/sys/fs/cgroup/*/cgroup.procs") + glob.glob("/sys/fs/cgroup/cgroup.procs")
if not files:
    report(False, "there is no hierarchy")


def move():
    with open(files[0], "w") as members:
        members.write(str(os.getpid()))
    os._exit(7)


# Only a child moves, and ends at once.
_, status = os.waitpid(child(move), 0)
report(os.waitstatus_to_exitcode(status) == 7, f"{files[0]}: {'joined' if status else 'refused'}")
