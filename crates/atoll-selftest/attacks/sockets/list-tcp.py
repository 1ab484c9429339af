# tried: lists the listeners of the host
# wall: `/proc/net` shows the sandbox's own network namespace
# control: room
with open("/proc/net/tcp") as table:
    ports = [int(line.split()[1].split(":")[1], 16) for line in table.readlines()[1:]]
report(TARGET["port"] in ports, f"ports {ports[:5]}")
