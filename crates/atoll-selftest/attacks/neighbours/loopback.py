# tried: connects to a service on 127.0.0.1 of another sandbox
# wall: a network namespace for each sandbox
# control: neighbour
import socket
with socket.create_connection(("127.0.0.1", TARGET["n_port"]), timeout=3) as stream:
    report(True, stream.recv(100).decode())
