# tried: sends under {variant}, which is not its own
# wall: packets with another source than the slot's own are dropped before they are tracked
# target: source=forged
# control: inside source=own
import socket, time
word = f"{TARGET['variant']} {TARGET['source']} {os.urandom(8).hex()}"
source = {
    "a-public-address": "203.0.113.99", "the-hosts-address": TARGET["w_host"], "an-address-of-other-sandboxes": "10.87.0.9",
}[TARGET["variant"]]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
    speaker.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND: any address may be bound
    if TARGET["source"] == "forged":
        speaker.bind((source, 0))
    for _ in range(3):
        speaker.sendto(word.encode(), (TARGET["w_public"], 9))
seen = ""
for _ in range(20):
    with socket.create_connection((TARGET["w_public"], 81), timeout=3) as diary:
        while part := diary.recv(65536):
            seen += part.decode()
    if word in seen:
        break
    time.sleep(0.05)
report(word in seen, "it arrived" if word in seen else "it never arrived")
