# tried: reads POSIX shared memory of another sandbox
# wall: `/dev/shm` is a tmpfs of the sandbox
# control: neighbour
with open(TARGET["n_shared"]) as file:
    report(True, file.read())
