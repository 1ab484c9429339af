# tried: {variant} of 160 MiB where 96 MiB of memory are allowed
# wall: the memory controller of the cgroup, without swap
# limits: memory_mib=96 shm_mib=256
# control: looser memory_mib=512 shm_mib=256
SIZE, STEP = 160 << 20, 4 << 20
held = bytearray()
block = os.urandom(STEP)
if TARGET["variant"] == "an-allocation":
    while len(held) < SIZE:
        held += block
else:
    descriptor = {
        "a-memory-file": lambda: os.memfd_create("flood"),
        "shared-memory": lambda: os.open("/dev/shm/flood", os.O_CREAT | os.O_RDWR),
    }[TARGET["variant"]]()
    written = 0
    while written < SIZE:
        written += os.write(descriptor, block)
report(True, "all of it")
