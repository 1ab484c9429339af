# tried: reads the log of the host's kernel
# wall: seccomp refuses `syslog`; `/proc/kmsg` takes CAP_SYSLOG of the host
# wall-gvisor: gVisor's kernel has a log of its own
# control: room
size, error = call(103, 10, 0, 0)  # SYSLOG_ACTION_SIZE_BUFFER takes the same right as reading
text = ctypes.create_string_buffer(256)
size, error = call(103, 3, text, 255)  # SYSLOG_ACTION_READ_ALL
own_kernel(error is None, error or f"{size} bytes")
