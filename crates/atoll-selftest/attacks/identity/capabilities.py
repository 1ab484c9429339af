# tried: raises {variant} in its effective set
# wall: 14 capabilities, all within the user namespace; the others are not in its bounding set
# wall-gvisor: 14 capabilities, in gVisor's kernel
# control: room
number = {
    "sys-admin": 21, "sys-ptrace": 19, "sys-module": 16, "sys-rawio": 17, "sys-boot": 22, "sys-time": 25,
    "net-admin": 12, "dac-read-search": 2, "mac-admin": 33, "syslog": 34, "bpf": 39, "perfmon": 38, "checkpoint-restore": 40,
}[TARGET["variant"]]
head = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
_, error = call(125, head, data)  # capget
assert error is None, error
word, bit = number // 32, 1 << (number % 32)
for field in (0, 1):
    data[word * 3 + field] |= bit
_, error = call(126, head, data)  # capset
report(error is None, error or "raised")
