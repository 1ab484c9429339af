# tried: {variant}, for its own keyring
# wall: seccomp refuses the calls for keys, which are counted per user and shared beyond namespaces
# wall-gvisor: gVisor's kernel has keyrings of its own, or none
# control: room
import time
work = {
    # Into the ring of this process, with which it goes.
    "adding": lambda: call(248, b"user", b"atoll-selftest", b"x", 1, -2),
    "asking": lambda: call(249, b"user", b"atoll-selftest-absent", 0, -2),
    "joining": lambda: call(250, 1, 0),
}[TARGET["variant"]]
result, error = work()
if error is None and TARGET["tier"] == "gvisor":
    own_kernel(True, f"{TARGET['variant']}: done")
reached(TARGET["variant"], result, error, harmless=("ENOKEY",))
