# tried: opens a message queue of another sandbox by its name
# wall: an ipc namespace for each sandbox
# wall-gvisor: an ipc namespace in a kernel of its own
# control: neighbour
queue, error = call(240, TARGET["n_queue"].encode(), os.O_RDONLY, 0, 0)
report(error is None, error or f"descriptor {queue}")
