# tried: 300 terminals, of which the host has few for all
# wall: terminals of its own, 256 at most
# wall-gvisor: terminals are gVisor's own
# limits: open_files=1024
# control: room
held = []
try:
    while len(held) < 300:
        held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error:
    report(False, f"{len(held)} terminals, then {errno.errorcode[error.errno]}")
own_kernel(True, f"{len(held)} terminals")
