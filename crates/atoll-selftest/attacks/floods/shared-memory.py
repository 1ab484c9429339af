# tried: 4 MiB of shared memory where 2 are allowed
# wall: `/dev/shm` is a tmpfs of that size
# limits: shm_mib=2
# control: looser shm_mib=16
written = 0
descriptor = os.open("/dev/shm/flood", os.O_CREAT | os.O_WRONLY)
block = b"x" * (1 << 20)
try:
    while written < 4 << 20:
        written += os.write(descriptor, block)
except OSError as error:
    report(False, f"{written >> 20} MiB, then {errno.errorcode[error.errno]}")
report(True, f"{written >> 20} MiB")
