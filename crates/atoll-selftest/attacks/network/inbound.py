# tried: has somebody on the internet speak first, to every address that a sandbox could have and to the host's
# wall: nobody can speak to a sandbox first
# target: port=listener
# control: inside port=asker
import select, socket
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("0.0.0.0", 8097))
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.connect((TARGET["w_public"], 10))
word = os.urandom(8).hex()
for first, count in ((TARGET["range"].partition("/")[0], 4200), (TARGET["w_host"], 1), (asker.getsockname()[0], 1)):
    asker.send(json.dumps({"first": first, "count": count, "word": word, "port": 8097}).encode())
    assert select.select([asker], [], [], 10)[0], "the world does not answer"
    answer = asker.recv(100)
# An answer comes back, or there was nobody to speak.
heard = {"listener": listener, "asker": None}[TARGET["port"]]
if heard is None:
    report(answer == b"called", "who asked first is answered")
arrived = select.select([heard], [], [], 1)[0]
report(arrived, "it was heard" if arrived else "nothing was heard for 1 s")
