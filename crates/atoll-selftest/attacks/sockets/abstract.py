# tried: connects to an abstract Unix socket of the host, which has no path
# wall: abstract names belong to a network namespace
# control: room
import socket
with socket.socket(socket.AF_UNIX) as stream:
    stream.connect("\0" + TARGET["abstract"])
    report(True, stream.recv(100).decode())
