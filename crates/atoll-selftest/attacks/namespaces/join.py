# tried: joins the {variant} namespace of PID 1 by `setns`
# wall: seccomp refuses `setns`; PID 1 shows its namespaces to nobody
# wall-gvisor: gVisor's namespaces are its own and reach nothing of the host
# target: pid=1
# control: room pid=self
assert TARGET["variant"] in ("mnt", "net", "uts", "ipc", "cgroup")
descriptor = os.open(f"/proc/{TARGET['pid']}/ns/{TARGET['variant']}", os.O_RDONLY)
result, error = call(308, descriptor, 0)
own_kernel(error is None, error or "joined")
