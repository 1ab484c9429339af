# tried: sends a datagram to every address that another sandbox could have
# wall: the firewall drops what goes from one sandbox to another
# control: observer
import socket, time
HEARD, WORD = "/tmp/heard", b"hello neighbour"
# A host has no more sandboxes than this at once, and gives them the first addresses of its range.
SLOTS = 4200
if TARGET["step"] == "check":
    for _ in range(40):
        if os.path.exists(HEARD):
            with open(HEARD) as file:
                report(True, f"it heard from {file.read().strip()}")
        time.sleep(0.05)
    report(False, "it heard nothing for 2 s")
# The attacker listens as well: its own address is one of them, or it is told to itself.
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("0.0.0.0", 8099))
if os.fork() == 0:
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    text, sender = listener.recvfrom(100)
    with open(HEARD + ".new", "w") as file:
        file.write(sender[0])
    os.rename(HEARD + ".new", HEARD)
    os._exit(0)
address, _, length = TARGET["range"].partition("/")
first = int.from_bytes(socket.inet_aton(address), "big")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
    speaker.connect((TARGET["w_public"], 9))
    own = speaker.getsockname()[0]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
    for number in range(min(1 << 32 - int(length), SLOTS)):
        try:
            speaker.sendto(WORD, (socket.inet_ntoa((first + number).to_bytes(4, "big")), 8099))
        except OSError:
            pass
    speaker.sendto(WORD, (own, 8099))
report(True, f"sent to all of {TARGET['range']} and to {own}")
