# tried: {variant} of a process of the host, by its number
# wall: a pid namespace: the number means nobody, or one of the sandbox's own
# control: room
# Every way to lay hands on a process whose number, and the place of its secret, is known.
pid, address, length = TARGET["pid"], TARGET["address"], TARGET["length"]
marker = TARGET["marker"].removeprefix("atoll-selftest-").encode()


def vector(base, size):
    return (ctypes.c_ulong * 2)(base, size)


def signal():
    os.kill(pid, 0)
    return "it can be signalled"


def trace():
    _, error = call(101, 0x4206, pid, 0, 0)  # PTRACE_SEIZE, which does not stop it
    if error:
        raise OSError(getattr(errno, error), error)
    call(101, 17, pid, 0, 0)  # PTRACE_DETACH
    return "it can be traced"


def memory_by_call():
    buffer = ctypes.create_string_buffer(length)
    size, error = call(310, pid, vector(ctypes.addressof(buffer), length), 1, vector(address, length), 1, 0)
    if error:
        raise OSError(getattr(errno, error), error)
    return buffer.raw[:size].decode()


def memory_by_file():
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(address)
        return memory.read(length).decode()


def descriptor():
    process = os.pidfd_open(pid)
    stolen, error = call(438, process, TARGET["descriptor"], 0)
    if error:
        raise OSError(getattr(errno, error), error)
    return os.pread(stolen, 100, 0).decode().strip()


def limits():
    import resource
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)


def oom_score():
    with open(f"/proc/{pid}/oom_score_adj", "r+") as score:
        value = score.read()
        score.seek(0)
        score.write(value)
    return f"wrote {value.strip()} back"


def priority():
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return "its priority can be set"


def affinity():
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return "its processors can be chosen"


got = {
    "signalling": signal, "tracing": trace, "memory-by-call": memory_by_call, "memory-by-file": memory_by_file,
    "descriptors": descriptor, "limits": limits, "oom-score": oom_score, "priority": priority, "affinity": affinity,
}[TARGET["variant"]]()
# The number may be that of another process inside.
with open(f"/proc/{pid}/cmdline", "rb") as file:
    report(marker in file.read(), got)
