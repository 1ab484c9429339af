# tried: stops and kills every process that it can name, so that another sandbox or the host loses one
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
    for _ in range(60):
        if not alive():
            report(True, "its process is dead")
        time.sleep(0.05)
    report(False, "its process lives on for 3 s")
# One of the same name dies here.
if os.fork() == 0:
    os.setsid()
    libc.prctl(15, NAME.encode(), 0, 0, 0)
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    time.sleep(1000)
    os._exit(0)
while not alive():
    time.sleep(0.005)
# The killer waits until this program has ended: its own shepherd is among the victims.
parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    while os.getppid() == parent:
        time.sleep(0.005)
    time.sleep(0.2)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        for pid in [-1, *range(2, 5000), TARGET["pid"]]:
            # By the name of any of its threads gVisor lets root end PID 1, and with it all that the
            # control could look at.
            if pid != os.getpid() and not os.path.exists(f"/proc/1/task/{pid}"):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
    os._exit(0)
report(True, "a killer is loose")
