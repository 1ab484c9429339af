# 4000 datagrams at once, as a tunnel through names would send them.
import socket, time
if TARGET["aim"] == "gateway":
    with open("/proc/net/route") as table:
        gateway = next(line.split()[2] for line in table if line.split()[1] == "00000000")
    address = socket.inet_ntoa(bytes.fromhex(gateway)[::-1]), 53
else:
    address = TARGET["w_public"], 9
start = time.monotonic()
sent = 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tunnel:
    for number in range(4000):
        name = b"\x20" + os.urandom(16).hex().encode() + b"\4test\0"
        try:
            tunnel.sendto(number.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + name + b"\0\x10\0\1", address)
            sent += 1
        except OSError:
            time.sleep(0.001)
report(True, json.dumps({"sent": sent, "seconds": time.monotonic() - start}))
