# tried: makes a process in a new user namespace with `{variant}`
# wall: seccomp refuses namespace flags of `clone` and all of `clone3`; no user namespaces are granted
# wall-gvisor: gVisor's namespaces are its own and reach nothing of the host
# control: room pivoted
NEWUSER, SIGCHLD = 0x10000000, 17
if TARGET["variant"] == "clone":
    result, error = call(56, NEWUSER | SIGCHLD, 0, 0, 0, 0)
elif TARGET["variant"] == "clone3":
    words = (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, SIGCHLD)
    result, error = call(435, words, 88)
if result == 0:
    os._exit(0)
if error is None:
    os.waitpid(result, 0)
own_kernel(error is None, error or "made")
