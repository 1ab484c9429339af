# tried: connects to a Unix socket of the host by its path
# wall: a mount namespace: the path is not there
# control: room
import socket
with socket.socket(socket.AF_UNIX) as stream:
    stream.connect(TARGET["socket"])
    report(True, stream.recv(100).decode())
