# tried: sets the clock to what it says already
# wall: seccomp refuses it; it takes CAP_SYS_TIME of the host
# wall-gvisor: gVisor's own kernel cannot set a clock
# target: time=now
# control: room time=impossible
import time
# As root of the host, a time that no clock can have: the kernel says so only to who may set it.
now = int(time.time()), time.time_ns() % 10**9
seconds, nanoseconds = now if TARGET["time"] == "now" else (0, -1)
result, error = call(227, 0, (ctypes.c_long * 2)(seconds, nanoseconds))
report(error is None or TARGET["time"] == "impossible" and error == "EINVAL", error or "set")
