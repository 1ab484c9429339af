# tried: connects to an abstract Unix socket of another sandbox
# wall: a network namespace for each sandbox
# control: neighbour
import socket
with socket.socket(socket.AF_UNIX) as stream:
    stream.connect("\0" + TARGET["n_abstract"])
    report(True, stream.recv(100).decode())
