# tried: is root of the host: looks which user of the host its uid 0 is
# wall: a user namespace with 65536 users of its own
# wall-gvisor: the sandbox's processes are gVisor's; its user map says nothing of the host
# control: room
with open("/proc/self/uid_map") as file:
    first, on_host, count = file.readline().split()
own_kernel(on_host == "0", f"uid 0 is uid {on_host} of the host")
