# tried: connects to 18 services of the host by {variant}
# wall: of the host, a sandbox reaches its own DNS forwarder and nothing else
# target: from=inside
# control: room from=host
import select, socket
PORTS = TARGET["w_host_ports"]
address = {"its-own-address": TARGET["w_host"], "loopback": "127.0.0.1", "the-gateway": None}[TARGET["variant"]]
if address is None:
    with open("/proc/net/route") as table:
        gateway = next(line.split()[2] for line in table if line.split()[1] == "00000000")
    # On the host itself the gateway is the world; there the host's address takes its place.
    address = socket.inet_ntoa(bytes.fromhex(gateway)[::-1]) if TARGET["from"] == "inside" else TARGET["w_host"]
ours = {49983} if address == "127.0.0.1" and TARGET["from"] == "inside" else set()
attempts = {}
for port in set(PORTS) - ours:
    attempt = socket.socket()
    attempt.setblocking(False)
    attempt.connect_ex((address, port))
    attempts[attempt] = port
_, writable_ones, _ = select.select([], attempts, [], 1)
while True:
    open_ones = [attempts[attempt] for attempt in writable_ones if attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0]
    rest = [attempt for attempt in attempts if attempt not in writable_ones]
    _, more, _ = select.select([], rest, [], 1)
    if not more:
        break
    writable_ones += more
report(open_ones, f"{address}: {len(attempts)} ports, open {sorted(open_ones)}")
