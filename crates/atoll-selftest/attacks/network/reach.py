# tried: connects to {variant}, which a sandbox must not reach
# wall: the firewall drops closed ranges before any interface of a sandbox is made
# target: address=closed
# control: inside address=public
import socket
closed = dict(zip(("the-metadata-service", "10.0.0.0", "172.16.0.0", "192.168.0.0", "100.64.0.0"), TARGET["w_closed"]))
address = closed[TARGET["variant"]] if TARGET["address"] == "closed" else TARGET["w_public"]
with socket.create_connection((address, 80), timeout=1) as stream:
    stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
    report(True, stream.recv(1000).decode().splitlines()[0])
