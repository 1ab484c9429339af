# tried: asks a name server in a closed range
# wall: the firewall drops closed ranges, for UDP as well
# target: address=closed
# control: inside address=public
import socket
address = TARGET["w_closed"][1] if TARGET["address"] == "closed" else TARGET["w_resolver"]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
    question.settimeout(1)
    question.sendto(b"\x12\x34\x01\x00\x00\x01\0\0\0\0\0\0\x01x\0\0\x01\0\x01", (address, 53))
    report(question.recv(100)[:2] == b"\x12\x34", f"{address} answers")
