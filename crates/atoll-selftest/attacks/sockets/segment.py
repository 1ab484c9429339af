# tried: attaches a System V segment of the host by its number
# wall: an ipc namespace
# control: room
address, error = call(30, TARGET["segment"], 0, 0o10000)  # shmat, read-only
if error:
    report(False, error)
report(True, ctypes.string_at(address, TARGET["length"]).decode())
