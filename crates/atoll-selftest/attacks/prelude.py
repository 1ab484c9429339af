# What every attack has: raw system calls, and one way to say what came of it.
import ctypes, errno, json, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def report(success, got, detail="", absent=None):
    """Says what the attacker got, and ends."""
    line = {"success": bool(success), "got": str(got), "detail": str(detail)}
    if absent:
        line["absent"] = absent
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    os._exit(0)


def call(number, *arguments):
    """A system call by its number (x86-64): its result, and the name of its error or None."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    if result >= 0:
        return result, None
    number = ctypes.get_errno()
    return result, errno.errorcode.get(number, str(number))


def reached(name, result, error, harmless=()):
    """For calls with arguments that cannot do harm: whether the kernel looked at
    them, which it does only for those who may. `harmless` are the errors that it
    then gives; without any, the call must work."""
    if error == "ENOSYS":
        report(False, f"{name}: ENOSYS", absent=f"`{name}` in its kernel")
    report(error is None or error in harmless, f"{name}: {error or 'done'}")


def child(work):
    """Runs `work` in a process that ends with this one; its pid."""
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, 9, 0, 0, 0)
        try:
            work()
        finally:
            os._exit(0)
    return pid


def host_in_sight():
    """The first thing of the host that can be seen from here, or None."""
    import socket
    if any(os.path.exists(TARGET[name]) for name in ("file", "outside", "shared_memory")):
        return "its files"
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if TARGET["variable"].encode() in file.read():
                    return "its processes"
        except OSError:
            pass
    with open("/proc/sys/kernel/random/boot_id") as file:
        if file.read().strip() == TARGET["boot_id"]:
            return "its kernel"
    for address in (("127.0.0.1", TARGET["port"]), "\0" + TARGET["abstract"]):
        with socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX) as stream:
            stream.settimeout(1)
            if stream.connect_ex(address) == 0:
                return "its sockets"
    return None


def own_kernel(success, got):
    """For what a sandbox with a kernel of its own may do to that kernel: it counts
    only if something of the host comes into sight by it."""
    if success and TARGET["tier"] == "gvisor":
        seen = host_in_sight()
        report(seen, f"{got}, in gVisor's own kernel; of the host it sees {seen or 'nothing'}")
    report(success, got)


def writable(path):
    """Opens a setting for writing and writes nothing: the kernel has decided by then."""
    if not os.path.exists(path):
        report(False, "not there", absent=f"`{path}`")
    os.close(os.open(path, os.O_WRONLY))
    own_kernel(True, f"{path} is open for writing")


def refused(kind, error, trace):
    """An attack that runs into an error of the system has failed; any other error is a mistake of ours."""
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno, "an error")
        report(False, f"{name}: {error}")
    sys.__excepthook__(kind, error, trace)


sys.excepthook = refused
