# tried: leaves by IPv6, for which there may be other rules
# wall: sandboxes have no IPv6
# control: room
import socket
if not os.path.exists("/proc/sys/net/ipv6"):
    report(False, "no IPv6", absent="IPv6")
with socket.create_connection((TARGET["w_ipv6"], 80), timeout=1) as stream:
    stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
    report(True, stream.recv(1000).decode().splitlines()[0])
