# tried: opens {variant}, a setting of the host's kernel, for writing
# wall: `/proc/sys` and `/sys` are mounted read-only, by the host, and belong to the host's root
# wall-gvisor: gVisor's kernel has settings of its own
# control: room
# Raising what the kernel grants to namespaces takes a right that the root of some hosts lacks.
with open("/proc/self/status") as status:
    rights = int(next(line.split()[1] for line in status if line.startswith("CapEff")), 16)
if TARGET["variant"] == "user-namespaces" and not rights >> 24 & 1:
    report(False, "EACCES", absent="CAP_SYS_RESOURCE for its root")
writable({
    "core-pattern": "/proc/sys/kernel/core_pattern",
    "modprobe": "/proc/sys/kernel/modprobe",
    "hotplug": "/proc/sys/kernel/hotplug",
    "uevent-helper": "/sys/kernel/uevent_helper",
    "panic": "/proc/sys/kernel/panic",
    "address-randomisation": "/proc/sys/kernel/randomize_va_space",
    "dmesg-restrict": "/proc/sys/kernel/dmesg_restrict",
    "kptr-restrict": "/proc/sys/kernel/kptr_restrict",
    "overcommit": "/proc/sys/vm/overcommit_memory",
    "swappiness": "/proc/sys/vm/swappiness",
    "file-max": "/proc/sys/fs/file-max",
    "protected-links": "/proc/sys/fs/protected_symlinks",
    "user-namespaces": "/proc/sys/user/max_user_namespaces",
    "forwarding": "/proc/sys/net/ipv4/ip_forward",
    "hugepages": "/proc/sys/vm/nr_hugepages",
}[TARGET["variant"]])
