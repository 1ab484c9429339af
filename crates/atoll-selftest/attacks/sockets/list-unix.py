# tried: lists the Unix sockets of the host
# wall: `/proc/net` shows the sandbox's own network namespace
# control: room
with open("/proc/net/unix") as table:
    text = table.read()
report(TARGET["abstract"] in text, f"{len(text.splitlines()) - 1} sockets")
