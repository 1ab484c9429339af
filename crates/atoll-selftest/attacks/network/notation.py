# tried: connects to the metadata service by its {variant} notation
# wall: the firewall looks at packets, which have one notation
# target: address=closed
# control: inside address=public
import socket
address = TARGET["w_closed"][0] if TARGET["address"] == "closed" else TARGET["w_public"]
parts = [int(part) for part in address.split(".")]
number = int.from_bytes(bytes(parts), "big")
name = {
    "decimal": str(number), "hexadecimal": hex(number), "octal": ".".join(f"0{part:o}" for part in parts),
    "short": f"{parts[0]}.{parts[1]}.{parts[2] * 256 + parts[3]}", "ipv4-mapped": f"::ffff:{address}",
}[TARGET["variant"]]
with socket.create_connection((name, 80), timeout=1) as stream:
    stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
    report(True, f"{name}: {stream.recv(1000).decode().splitlines()[0]}")
