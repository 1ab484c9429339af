# tried: joins the namespaces of a process of the host
# wall: seccomp refuses `setns`; a pid namespace hides the process
# control: room
with open(f"/proc/{TARGET['pid']}/ns/uts") as namespace:
    result, error = call(308, namespace.fileno(), 0)
    if os.stat(namespace.fileno()).st_ino == os.stat("/proc/self/ns/uts").st_ino:
        report(error is None, error or "joined")
report(False, "not the same namespace")
