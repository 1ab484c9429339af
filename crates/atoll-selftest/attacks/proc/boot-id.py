# tried: recognises the host by its boot id
# wall: a `boot_id` of its own is mounted over the kernel's
# wall-gvisor: gVisor's kernel makes one
# control: room
with open("/proc/sys/kernel/random/boot_id") as file:
    found = file.read().strip()
report(found == TARGET["boot_id"], found)
