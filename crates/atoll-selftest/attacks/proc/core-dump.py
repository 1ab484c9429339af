# tried: raises its limit for core dumps, with which a crash runs what `core_pattern` of the host says
# wall: a limit of one byte for core dumps, which cannot be raised
# wall-gvisor: gVisor's kernel makes no core dumps
# control: room
import resource
try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except ValueError as error:
    report(False, error)
report(True, "the limit could be raised")
