# tried: finds a process of another sandbox by its name
# wall: a pid namespace for each sandbox
# control: neighbour
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/comm") as file:
            if file.read().strip() == TARGET["n_comm"]:
                report(True, f"process {pid}")
    except OSError:
        pass
report(False, "no such process")
