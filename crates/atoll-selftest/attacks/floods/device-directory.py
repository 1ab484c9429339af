# tried: more in `/dev`, which is memory, than is allowed
# wall: `/dev` is a tmpfs of 64 KiB
# wall-gvisor: nothing can be written there, or it counts as the sandbox's memory
# limits: memory_mib=96
# target: path=/dev/flood
# control: inside path=/home/flood
# gVisor gives no size to its `/dev`, so there all of memory is tried.
size = 160 << 20 if TARGET["tier"] == "gvisor" else 1 << 20
written = 0
descriptor = os.open(TARGET["path"], os.O_CREAT | os.O_WRONLY)
try:
    while written < size:
        written += os.write(descriptor, b"x" * min(size, 1 << 18))
except OSError as error:
    report(False, f"{written >> 10} KiB, then {errno.errorcode[error.errno]}")
report(True, f"{written >> 10} KiB")
