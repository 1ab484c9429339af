# tried: changes the name of the host by `{variant}`
# wall: seccomp refuses it; a uts namespace would keep it inside
# wall-gvisor: gVisor's kernel has a name of its own
# control: room in uts
number = {"sethostname": 170, "setdomainname": 171}[TARGET["variant"]]
result, error = call(number, b"owned", 5)
own_kernel(error is None, error or "changed")
