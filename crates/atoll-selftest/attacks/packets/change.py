# tried: {variant} in its network namespace, as root inside
# wall: the network namespace belongs to the host: root inside has no right over it
# wall-gvisor: CAP_NET_ADMIN is not among the capabilities
# control: room in net
import fcntl, socket, struct


def ioctl(request, data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, request, data)
    report(True, "changed")


def netlink(protocol, message):
    with socket.socket(16, socket.SOCK_RAW, protocol) as handle:
        handle.settimeout(5)
        handle.send(message)
        answer = handle.recv(4096)
    number = -struct.unpack_from("<i", answer, 16)[0]
    report(number == 0, errno.errorcode.get(number, "done"))


def message(kind, flags, body):
    return struct.pack("<IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body


name = b"lo".ljust(16, b"\0")
try:
    # A new namespace has its loopback down.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, 0x8914, name + struct.pack("<H", 0x41) + b"\0" * 14)
except OSError:
    pass
{
    "setting-an-address": lambda: ioctl(0x8916, name + struct.pack("<HH4s8x", 2, 0, socket.inet_aton("127.9.9.9"))),
    "setting-the-mtu": lambda: ioctl(0x8922, name + struct.pack("<i", 60000) + b"\0" * 12),
    # RTM_NEWROUTE to a documentation range through the loopback.
    "adding-a-route": lambda: netlink(0, message(24, 0x400, struct.pack(
        "<BBBBBBBBI", 2, 32, 0, 0, 254, 3, 253, 1, 0) + struct.pack("<HH4s", 8, 1, socket.inet_aton("198.51.100.7"))
        + struct.pack("<HHI", 8, 4, 1))),
    # A batch that makes a table and nothing else.
    "adding-a-firewall-table": lambda: netlink(12, struct.pack("<IHHII", 20, 0x10, 1, 0, 0) + struct.pack("<BBH", 0, 0, 0x0A00)
        + message(0xA00, 0x400, struct.pack("<BBH", 1, 0, 0) + struct.pack("<HH8s", 12, 1, b"atollst\0"))
        + struct.pack("<IHHII", 20, 0x11, 1, 2, 0) + struct.pack("<BBH", 0, 0, 0x0A00)),
}[TARGET["variant"]]()
