# tried: opens a socket of the family {variant}
# wall: seccomp allows Unix, IP and netlink; packet sockets take rights over the network namespace, which is the host's
# wall-gvisor: gVisor's own network stack, without this family or without the rights
# control: room
import socket
family, kind, protocol = {
    "packet": (17, socket.SOCK_RAW, socket.htons(3)), "raw-icmp": (2, socket.SOCK_RAW, 1), "raw-ip": (2, socket.SOCK_RAW, 255),
    "raw-icmpv6": (10, socket.SOCK_RAW, 58),
    "vsock": (40, socket.SOCK_STREAM, 0), "crypto": (38, socket.SOCK_SEQPACKET, 0), "xdp": (44, socket.SOCK_RAW, 0),
    "bluetooth": (31, socket.SOCK_RAW, 1), "can": (29, socket.SOCK_RAW, 1), "key": (15, socket.SOCK_RAW, 2),
}[TARGET["variant"]]
try:
    socket.socket(family, kind, protocol)
    report(True, "opened")
except OSError as error:
    missing = error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)
    report(False, errno.errorcode[error.errno], absent=f"socket family {TARGET['variant']}" if missing else None)
