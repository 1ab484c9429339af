# tried: connects to a service on the host's 127.0.0.1
# wall: a network namespace with a loopback interface of its own
# control: room
import socket
with socket.create_connection(("127.0.0.1", TARGET["port"]), timeout=3) as stream:
    report(True, stream.recv(100).decode())
