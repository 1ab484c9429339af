# tried: learns addresses of the host's kernel
# wall: the kernel shows zeros to those without CAP_SYSLOG of the host
# wall-gvisor: gVisor's `/proc` has no such file
# control: room
if not os.path.exists("/proc/kallsyms"):
    report(False, "not there", absent="`/proc/kallsyms`")
with open("/proc/kallsyms") as file:
    line = file.readline()
report(line and int(line.split()[0], 16) != 0, line.strip() or "empty")
