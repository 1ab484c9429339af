# tried: 64 threads where 32 are allowed
# wall: the pids controller of the cgroup, which counts threads
# wall-gvisor: the pids controller around the sandbox
# limits: pids=32
# control: looser pids=256
import threading
stop = threading.Event()
made = 0
try:
    while made < 64:
        threading.Thread(target=stop.wait, daemon=True).start()
        made += 1
except RuntimeError as error:
    report(False, f"{made} threads, then {error}")
report(True, f"{made} threads")
