# tried: 24 MiB in `/run`, which is memory
# wall: `/run` is a tmpfs of 16 MiB
# wall-gvisor: `/run` is a tmpfs of 16 MiB, in gVisor's kernel
# alone:
# control: room
written = 0
descriptor = os.open("/run/flood", os.O_CREAT | os.O_WRONLY)
block = b"x" * (1 << 20)
try:
    while written < 24 << 20:
        written += os.write(descriptor, block)
except OSError as error:
    report(False, f"{written >> 20} MiB, then {errno.errorcode[error.errno]}")
report(True, f"{written >> 20} MiB")
