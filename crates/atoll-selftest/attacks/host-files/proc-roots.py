# tried: reads a file of the host through `root` and `cwd` of every process there is
# wall: a pid namespace: there are only processes of the sandbox, and their root is the sandbox's
# control: room
got = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for way in ("root", "cwd"):
        try:
            with open(f"/proc/{pid}/{way}{TARGET['outside']}") as file:
                got.append(file.read().strip())
        except OSError:
            pass
report(got, got[0] if got else "no process leads there")
