# tried: makes a namespace of kind {variant}, in which it would have more rights
# wall: seccomp refuses `unshare`; no user namespaces are granted inside
# wall-gvisor: gVisor's namespaces are its own and reach nothing of the host
# control: room pivoted
flag = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
    "cgroup": 0x2000000, "time": 0x80,
}[TARGET["variant"]]
result, error = call(272, flag)
if error == "EINVAL":
    report(False, error, absent="this kind of namespace")
own_kernel(error is None, error or "made")
