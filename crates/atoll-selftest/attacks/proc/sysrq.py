# tried: opens the trigger of kernel commands (reboot, crash) for writing
# wall: `/proc/sysrq-trigger` is mounted read-only
# wall-gvisor: gVisor's `/proc` has no trigger
# control: room
if TARGET["pid"] and not os.path.exists("/proc/sysrq-trigger"):
    report(False, "not there", absent="`/proc/sysrq-trigger`")
os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))
report(True, "open for writing; nothing was written")
