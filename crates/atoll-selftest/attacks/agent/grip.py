# tried: {variant} of PID 1, the agent, by root inside
# wall: PID 1 is undumpable and the kernel shields the first process of a pid namespace
# wall-gvisor: PID 1 is undumpable to tracers; its descriptors lead to nothing of the host that can be written
# skip-gvisor-stopping: root may stop its own sandbox there, and nothing else: see `neighbours.kill-all`
# skip-gvisor-killing: root may end its own sandbox there, and nothing else: see `neighbours.kill-all`
# target: pid=1
# control: inside pid=own
import ctypes.util, signal, time
pid = 1
if TARGET["pid"] == "own":
    # A process without protection, which waits.
    pid = child(lambda: time.sleep(30))


def state():
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def soon(wanted):
    for _ in range(100):
        if state() in wanted:
            return True
        time.sleep(0.005)
    return False


def trace():
    _, error = call(101, 0x4206, pid, 0, 0)
    report(error is None, error or "it can be traced")


def memory_by_file():
    with open(f"/proc/{pid}/maps") as maps:
        first = next(line for line in maps if " r" in line)
    start = int(first.split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(start)
        report(True, memory.read(16))


def memory_by_call():
    # Whether anything is mapped there does not matter: who may not, is told so first.
    buffer = ctypes.create_string_buffer(16)
    here = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 16)
    there = (ctypes.c_ulong * 2)(0x1000, 16)
    _, error = call(310, pid, here, 1, there, 1, 0)
    report(error in (None, "EFAULT"), error or "read")


def stop():
    os.kill(pid, signal.SIGSTOP)
    report(soon("Tt"), f"its state is {state()}")


def kill():
    os.kill(pid, signal.SIGKILL)
    report(soon("ZX"), f"its state is {state()}")


def descriptors():
    if TARGET["tier"] == "gvisor" and pid == 1:
        return descriptors_of_host()
    report(True, [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")])


def descriptors_of_host():
    """gVisor lists them; what counts is whether one that leads out can be written to."""
    outside, links = [], {}
    for name in os.listdir("/proc/1/fd"):
        links[name] = os.readlink(f"/proc/1/fd/{name}")
        if links[name].startswith("host:"):
            try:
                os.write(os.open(f"/proc/1/fd/{name}", os.O_WRONLY | os.O_NONBLOCK), b"x")
                outside.append(links[name])
            except OSError:
                pass
    report(outside, f"{len(links)} descriptors, writable ones of the host {outside}")


def program():
    os.open(f"/proc/{pid}/exe", os.O_PATH)
    report(True, os.readlink(f"/proc/{pid}/exe"))


{
    "tracing": trace, "memory-by-file": memory_by_file, "memory-by-call": memory_by_call, "stopping": stop,
    "killing": kill, "descriptors": descriptors, "program": program,
}[TARGET["variant"]]()
