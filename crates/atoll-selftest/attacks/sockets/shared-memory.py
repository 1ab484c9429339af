# tried: reads POSIX shared memory of the host
# wall: `/dev/shm` is a tmpfs of the sandbox
# control: room
with open(TARGET["shared_memory"]) as file:
    report(True, file.read().strip())
