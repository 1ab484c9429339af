# tried: uses up all {variant} that the kernel grants a user, so that another sandbox has none
# wall: each sandbox has a user namespace, and users, of its own
# skip-gvisor: its kernel does not count them per user, and is another one for each sandbox
# control: observer
import signal, time


def one_more():
    if TARGET["variant"] == "inotify-instances":
        return libc.inotify_init() >= 0
    if TARGET["variant"] == "timers":
        return libc.timer_create(0, 0, ctypes.byref(ctypes.c_long())) == 0
    assert TARGET["variant"] == "queued-signals"
    # A signal for ourselves, which waits because it is blocked.
    return libc.sigqueue(os.getpid(), 34, ctypes.c_void_p(0)) == 0


signal.pthread_sigmask(signal.SIG_BLOCK, {34})
if TARGET["step"] == "check":
    can = one_more()
    report(not can, "one more is granted" if can else "not one more is granted")
ready, done = os.pipe()
if os.fork() == 0:
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    while one_more():
        pass
    os.write(done, b"x")
    # Keeps them until its sandbox is removed.
    time.sleep(1000)
    os._exit(0)
os.read(ready, 1)
report(True, "used up")
