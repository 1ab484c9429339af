# tried: kills every process that it can name, and at last PID 1, so that another sandbox loses one of its own
# wall: a pid namespace for each sandbox
# wall-gvisor: a kernel for each sandbox
# control: observer
import signal, time
NAME = TARGET["n_comm"]


def alive():
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/comm") as comm, open(f"/proc/{entry}/stat") as stat:
                if comm.read().strip() == NAME and stat.read().rpartition(")")[2].split()[0] not in "ZXTt":
                    return True
        except OSError:
            pass
    return False


if TARGET["step"] == "check":
    lives = alive()
    report(not lives, "its process lives" if lives else "its process is dead")
# One of the same name dies here.
if os.fork() == 0:
    libc.prctl(15, NAME.encode(), 0, 0, 0)
    time.sleep(1000)
    os._exit(0)
while not alive():
    time.sleep(0.005)
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
    os.kill(-1, number)
    for pid in [*range(2, 5000), TARGET["pid"]]:
        if pid != os.getpid():
            try:
                os.kill(pid, number)
            except OSError:
                pass
report(not alive(), "all that could be named were killed")
