# tried: 1 MiB in `/dev`, which is memory
# wall: `/dev` is a tmpfs of 64 KiB
# wall-gvisor: nothing can be written there, or it counts as the sandbox's memory
# alone:
# target: path=/dev/flood
# control: inside path=/home/flood
written = 0
descriptor = os.open(TARGET["path"], os.O_CREAT | os.O_WRONLY)
try:
    while written < 1 << 20:
        written += os.write(descriptor, b"x" * 4096)
except OSError as error:
    report(False, f"{written >> 10} KiB, then {errno.errorcode[error.errno]}")
report(True, f"{written >> 10} KiB")
