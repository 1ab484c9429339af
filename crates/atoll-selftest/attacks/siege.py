# One of many attackers at once: for some seconds, everything that could hurt a neighbour or the host.
import random, signal, socket, time

END = time.monotonic() + float(TARGET["seconds"])
random.seed(TARGET["number"])
rounds = {}


def forks():
    made = []
    try:
        for _ in range(200):
            made.append(child(lambda: time.sleep(5)))
    finally:
        for pid in made:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def memory():
    def grow():
        held = []
        while True:
            held.append(os.urandom(1 << 20))
    os.waitpid(child(grow), 0)


def disk():
    try:
        with open("/home/flood", "wb", 0) as file:
            while True:
                file.write(os.urandom(1 << 20))
    finally:
        os.unlink("/home/flood")


def descriptors():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in held:
            os.close(descriptor)


def processor():
    stop = time.monotonic() + 0.5
    while time.monotonic() < stop:
        hash(os.urandom(64))


def signals():
    for number in set(range(1, 65)) - {15}:
        os.kill(1, number)


def refused_calls():
    for number in (165, 272, 308, 321, 425, 323, 250, 248, 155, 175, 246, 169, 298, 304):
        for _ in range(200):
            call(number, 0, 0, 0, 0, 0)


def proc_files():
    for name in os.listdir("/proc"):
        for part in ("environ", "maps", "mem", "root", "fd"):
            try:
                os.close(os.open(f"/proc/{name}/{part}", os.O_RDONLY))
            except OSError:
                pass


def agent():
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", 49983), timeout=2) as stream:
            stream.sendall(os.urandom(500))


def output():
    for _ in range(200):
        sys.stderr.write("x" * 10000 + "\n")


WAYS = [forks, memory, disk, descriptors, processor, signals, refused_calls, proc_files, agent, output]
while time.monotonic() < END:
    way = random.choice(WAYS)
    try:
        way()
    except (OSError, MemoryError, RuntimeError):
        pass
    rounds[way.__name__] = rounds.get(way.__name__, 0) + 1
report(True, json.dumps(rounds))
