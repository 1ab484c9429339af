# tried: pings the metadata service
# wall: the firewall drops closed ranges, for ICMP as well
# target: address=closed
# control: inside address=public
import socket
address = TARGET["w_closed"][0] if TARGET["address"] == "closed" else TARGET["w_public"]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as ping:
    ping.settimeout(1)
    ping.sendto(b"\x08\0\0\0\0\1\0\1atoll", (address, 0))
    report(ping.recv(100)[0] == 0, f"{address} answers")
