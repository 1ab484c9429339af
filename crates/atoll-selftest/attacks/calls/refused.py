# tried: calls `{variant}`, with arguments that do no harm where it is allowed
# wall: seccomp: a list of allowed calls, and this is not on it
# wall-gvisor: gVisor's own kernel answers, and this is not in it or takes rights that are not there
# control: room
# For each: the call, and the errors that only who may call it gets for such arguments.
A_PATH = b"/nonexistent/atoll-selftest"
attributes = (ctypes.c_char * 128)()
attributes[0:8] = (1).to_bytes(4, "little") + (128).to_bytes(4, "little")  # a software counter
ring = (ctypes.c_char * 120)()
timex = (ctypes.c_long * 26)()


def map_of_one():
    words = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # an array of one
    return call(321, 0, words, 128)


def same_time_zone():
    zone = (ctypes.c_int * 2)()
    libc.gettimeofday(0, zone)
    return call(164, 0, zone)


# ADJ_TICK, to a tick of 0, which is refused after the rights are looked at.
timex[0] = 0x4000

number_and_errors = {
    "init_module": (lambda: call(175, b"", 0, b""), ("ENOEXEC", "EINVAL")),
    "finit_module": (lambda: call(313, 0, b"", 0), ("ENOEXEC", "EBADF", "EINVAL")),
    "delete_module": (lambda: call(176, b"atoll_selftest_absent", 0o4000), ("ENOENT",)),
    "bpf": (map_of_one, ()),
    "perf_event_open": (lambda: call(298, attributes, 0, -1, -1, 0), ()),
    "io_uring_setup": (lambda: call(425, 1, ring), ()),
    "userfaultfd": (lambda: call(323, 0), ()),
    "kexec_load": (lambda: call(246, 0, 0, 0, 0xFFFF), ("EINVAL",)),
    "kexec_file_load": (lambda: call(320, -1, -1, 0, 0, 0xFFFF), ("EINVAL",)),
    "fanotify_init": (lambda: call(300, 0, 0), ()),
    "quotactl": (lambda: call(179, 0x80000700, A_PATH, 0, ctypes.create_string_buffer(80)), ("ENOENT", "EINVAL", "ESRCH", "ENOTBLK")),
    "swapon": (lambda: call(167, A_PATH, 0), ("ENOENT",)),
    "swapoff": (lambda: call(168, A_PATH), ("ENOENT", "EINVAL")),
    "reboot": (lambda: call(169, 0, 0, 0, 0), ("EINVAL",)),
    "adjtimex": (lambda: call(159, timex), ("EINVAL",)),
    "clock_adjtime": (lambda: call(305, 0, timex), ("EINVAL",)),
    "clock_settime": (lambda: call(227, 0, (ctypes.c_long * 2)(0, -1)), ("EINVAL",)),
    "settimeofday": (same_time_zone, ()),
    "acct": (lambda: call(163, A_PATH), ("ENOENT",)),
    "iopl": (lambda: call(172, 0), ()),
    "ioperm": (lambda: call(173, 0x80, 1, 0), ()),
    "vhangup": (lambda: (os.setsid() if os.getpid() != os.getsid(0) else None, call(153))[1], ()),
    "lookup_dcookie": (lambda: call(212, 0, ring, 1), ("EINVAL",)),
    "nfsservctl": (lambda: call(180, 0, 0, 0), ("EINVAL",)),
    "pidfd_getfd": (lambda: call(438, os.pidfd_open(os.getpid()), 0, 0), ()),
    "kcmp": (lambda: call(312, os.getpid(), os.getpid(), 1, 0, 0), ()),
    "move_pages": (lambda: call(279, 0, 0, 0, 0, 0, 0), ()),
    "process_madvise": (lambda: call(440, -1, 0, 0, 0, 0), ("EBADF", "EINVAL")),
    "sysfs": (lambda: call(139, 3), ()),
    "ustat": (lambda: call(136, os.stat("/").st_dev, ring), ("EINVAL",)),
    "uselib": (lambda: call(134, A_PATH), ("ENOENT",)),
}
work, harmless = number_and_errors[TARGET["variant"]]
result, error = work()
reached(TARGET["variant"], result, error, harmless)
