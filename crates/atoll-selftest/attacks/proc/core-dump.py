# tried: crashes, so that the host's kernel runs or writes what `core_pattern` says
# wall: a limit of one byte for core dumps, which cannot be raised
# wall-gvisor: gVisor's kernel makes no core dumps
# control: room
import resource, signal, tempfile
try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except ValueError as error:
    report(False, error)
os.chdir(tempfile.mkdtemp())


def crash():
    libc.prctl(4, 1, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSEGV)


_, status = os.waitpid(child(crash), 0)
report(True, f"the limit could be raised; core dumped: {os.WCOREDUMP(status)}")
