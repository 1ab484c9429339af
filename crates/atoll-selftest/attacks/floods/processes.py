# tried: 64 processes where 32 are allowed
# wall: the pids controller of the cgroup
# wall-gvisor: a limit of processes per user inside, and the pids controller around the sandbox
# limits: pids=32 memory_mib=1024
# control: looser pids=256 memory_mib=1024
import time
made = 0
try:
    while made < 64:
        child(lambda: time.sleep(20))
        made += 1
except OSError as error:
    report(False, f"{made} processes, then {errno.errorcode[error.errno]}")
report(True, f"{made} processes")
