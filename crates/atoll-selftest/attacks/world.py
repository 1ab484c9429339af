# A world around the sandboxes of a selftest, so that the operator's network is never touched.
#
#   sandbox ── this namespace, which plays the host ── world: an "internet" that answers on every address
#                 192.0.2.2                               192.0.2.1 and all of ADDRESSES
#
# The world is a network namespace of its own. It serves, on each of its addresses: TCP 80 (the
# secret of the world, and a redirect), UDP 53 (whatever is asked, an answer), UDP 9 (a diary of
# who wrote what), TCP 81 (the diary), UDP 10 (speaks to whomever it is told to).
import select, socket, struct, threading

PUBLIC = ["198.51.100.7", "198.51.100.53"]
CLOSED = ["169.254.169.254", "10.11.12.13", "172.20.1.2", "192.168.77.88", "100.64.3.4"]
PUBLIC_IPV6 = "2001:db8:1::7"
HERE, THERE, HERE_IPV6, THERE_IPV6 = "192.0.2.2", "192.0.2.1", "2001:db8::2", "2001:db8::1"


class Netlink:
    """Requests to the kernel about interfaces, in the network namespace of its maker."""

    def __init__(self):
        self.socket = socket.socket(16, socket.SOCK_RAW, 0)

    def ask(self, kind, flags, body):
        self.socket.send(struct.pack("<IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body)
        error = -struct.unpack_from("<i", self.socket.recv(65536), 16)[0]
        if error:
            raise OSError(error, os.strerror(error))

    @staticmethod
    def attribute(kind, data):
        return struct.pack("<HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)

    def veth(self, name, peer, pid):
        """A pair of interfaces, one here and one in the network namespace of `pid`."""
        head, attribute = struct.pack("<BBHiII", 0, 0, 0, 0, 0, 0), self.attribute
        other = head + attribute(3, peer.encode() + b"\0") + attribute(19, struct.pack("<I", pid))
        info = attribute(1, b"veth") + attribute(2, attribute(1, other))
        self.ask(16, 0x600, head + attribute(3, name.encode() + b"\0") + attribute(18, info))

    def up(self, name):
        self.ask(16, 0, struct.pack("<BBHiII", 0, 0, 0, socket.if_nametoindex(name), 1, 1))

    def address(self, name, text, length):
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        data = socket.inet_pton(family, text)
        # Without a search for duplicates, which would take a second.
        head = struct.pack("<BBBBI", family, length, 2 if ":" in text else 0, 0, socket.if_nametoindex(name))
        self.ask(20, 0x600, head + self.attribute(1, data) + self.attribute(2, data))

    def default_route(self, gateway):
        family = socket.AF_INET6 if ":" in gateway else socket.AF_INET
        head = struct.pack("<BBBBBBBBI", family, 0, 0, 0, 254, 4, 0, 1, 0)
        self.ask(24, 0x600, head + self.attribute(5, socket.inet_pton(family, gateway)))


def answer_web(listener):
    while True:
        stream, _ = listener.accept()
        with stream:
            stream.settimeout(5)
            try:
                asked = stream.recv(2000)
                if b"/redirect" in asked:
                    stream.sendall(b"HTTP/1.0 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
                else:
                    body = TARGET["world_secret"].encode()
                    stream.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            except OSError:
                pass


diary, changed = [], threading.Condition()


def write_diary(receiver):
    while True:
        text, sender = receiver.recvfrom(2000)
        with changed:
            diary.append(f"{sender[0]} {text.decode(errors='replace')}")


def show_diary(listener):
    while True:
        stream, _ = listener.accept()
        with stream:
            try:
                stream.sendall("\n".join(diary[-1000:]).encode())
            except OSError:
                pass


def answer_names(receiver):
    while True:
        query, sender = receiver.recvfrom(2000)
        # The question back, as an answer without records.
        try:
            receiver.sendto(query[:2] + b"\x81\x80" + query[4:], sender)
        except OSError:
            pass


def call_back(receiver):
    """Sends a word to every address of a range, as somebody on the internet would, then to who asked."""
    while True:
        text, sender = receiver.recvfrom(2000)
        order = json.loads(text)
        first = int.from_bytes(socket.inet_aton(order["first"]), "big")
        for number in range(order["count"]):
            try:
                receiver.sendto(order["word"].encode(), (socket.inet_ntoa((first + number).to_bytes(4, "big")), order["port"]))
            except OSError:
                pass
        receiver.sendto(b"called", sender)


def datagrams(address, port):
    # One for each address, so that an answer comes from where it was asked for.
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((address, port))
    return receiver


def play_world(ready, begin):
    _, error = call(272, 0x40000000)  # unshare(CLONE_NEWNET)
    assert error is None, error
    os.write(ready, b"1")
    os.read(begin, 1)
    netlink = Netlink()
    netlink.up("lo")
    netlink.up("world")
    netlink.address("world", THERE, 24)
    netlink.default_route(HERE)
    for address in PUBLIC + CLOSED:
        netlink.address("lo", address, 32)
    if socket.has_ipv6 and os.path.exists("/proc/sys/net/ipv6"):
        netlink.address("world", THERE_IPV6, 64)
        netlink.address("lo", PUBLIC_IPV6, 128)
    web = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    pages = socket.create_server(("0.0.0.0", 81), backlog=128)
    services = [(answer_web, web), (show_diary, pages)]
    for address in PUBLIC + CLOSED:
        services += [(write_diary, datagrams(address, 9)), (call_back, datagrams(address, 10)), (answer_names, datagrams(address, 53))]
    for work, handle in services:
        threading.Thread(target=work, args=(handle,), daemon=True).start()
    os.write(ready, b"2")
    select.select([], [], [])


ready, says = os.pipe()
waits, begin = os.pipe()
pid = child(lambda: play_world(says, waits))
os.close(says)
assert os.read(ready, 1) == b"1", "the world did not begin"
here = Netlink()
here.up("lo")
here.veth("uplink", "world", pid)
here.address("uplink", HERE, 24)
here.up("uplink")
here.default_route(THERE)
if os.path.exists("/proc/sys/net/ipv6"):
    here.address("uplink", HERE_IPV6, 64)
    here.default_route(THERE_IPV6)
os.write(begin, b"x")
assert os.read(ready, 1) == b"2", "the world did not come up"
# Services of the host, for who should not reach them.
PORTS = [22, 25, 80, 111, 443, 631, 2375, 2376, 3306, 5432, 6379, 6443, 7300, 8080, 8443, 9090, 10250, 49983]


def serve_host(host):
    while True:
        stream, _ = host.accept()
        with stream:
            try:
                stream.sendall(TARGET["world_secret"].encode())
            except OSError:
                pass


for port in PORTS:
    listener = socket.create_server(("0.0.0.0", port), backlog=128)
    threading.Thread(target=serve_host, args=(listener,), daemon=True).start()
# Whoever attacks from here finds all of it; then only walls can be in the way.
for address in PUBLIC + CLOSED + [PUBLIC_IPV6] * os.path.exists("/proc/sys/net/ipv6"):
    for attempt in range(100):
        try:
            socket.create_connection((address, 80), timeout=1).close()
            break
        except OSError as error:
            last = error
            select.select([], [], [], 0.05)
    else:
        raise AssertionError(f"{address} does not answer: {last}")
print(json.dumps({"success": True, "got": json.dumps({
    "w_public": PUBLIC[0], "w_resolver": PUBLIC[1], "w_closed": CLOSED, "w_ipv6": PUBLIC_IPV6,
    "w_host": HERE, "w_host_ports": PORTS,
})}), flush=True)
select.select([], [], [])
