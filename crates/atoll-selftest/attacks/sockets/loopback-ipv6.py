# tried: connects to a service on the host's ::1
# wall: a network namespace with a loopback interface of its own
# control: room
import socket
if not TARGET["port6"]:
    report(False, "no listener", absent="IPv6")
with socket.create_connection(("::1", TARGET["port6"]), timeout=3) as stream:
    report(True, stream.recv(100).decode())
