# tried: looks for a variable of the host in the environment of every process there is
# wall: the environment is cleared for the monitor and for PID 1; a pid namespace hides the rest
# control: room
name = TARGET["variable"].encode() + b"="
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(name):
                    report(True, entry.decode())
    except OSError:
        pass
report(False, "no process has it")
