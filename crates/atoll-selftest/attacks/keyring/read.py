# tried: reads a key of the host by its number
# wall: seccomp refuses `keyctl`
# wall-gvisor: gVisor's kernel has no keys of the host
# control: room
if not TARGET["key"]:
    report(False, "no key", absent="keys in its kernel")
buffer = ctypes.create_string_buffer(100)
size, error = call(250, 11, TARGET["key"], buffer, 100)  # KEYCTL_READ
report(error is None, error or buffer.value.decode())
