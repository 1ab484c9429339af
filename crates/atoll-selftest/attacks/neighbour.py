# The sandbox next door: it owns one of everything, and keeps it until it ends.
import fcntl, socket, time

SECRET = TARGET["secret"].encode()
FILE, SHARED, COMM = "/tmp/neighbour-secret", "/dev/shm/neighbour-secret", "neighbour"
KEY, QUEUE = 0x41544F4C, "neighbour-queue"
# Files of the template: in layers that all its sandboxes share.
LOCKED, OPENED = "/etc/os-release", "/etc/debian_version"

for path in (FILE, SHARED):
    with open(path, "wb") as file:
        file.write(SECRET)
    os.chmod(path, 0o666)

segment, error = call(29, KEY, 4096, 0o1666)  # shmget(IPC_CREAT)
assert error is None, error
address, error = call(30, segment, 0, 0)  # shmat
assert error is None, error
ctypes.memmove(address, SECRET, len(SECRET))

# struct mq_attr: flags, messages, size of one, now; then unused.
attributes = (ctypes.c_long * 8)(0, 4, 256, 0)
queue, error = call(240, QUEUE.encode(), os.O_CREAT | os.O_RDWR, 0o666, attributes)
assert error is None, error
call(242, queue, SECRET, len(SECRET), 0, 0)

name = "neighbour-" + TARGET["secret"][:8]
nameless = socket.socket(socket.AF_UNIX)
nameless.bind("\0" + name)
nameless.listen(64)
loopback = socket.create_server(("127.0.0.1", 0), backlog=64)

lock = open(LOCKED)
fcntl.flock(lock, fcntl.LOCK_EX)


def serve(listener):
    while True:
        connection, _ = listener.accept()
        try:
            connection.sendall(SECRET)
        except OSError:
            pass
        connection.close()


# Where any sandbox of a network would be heard.
anyone = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
anyone.bind(("0.0.0.0", 8099))


def hear():
    _, sender = anyone.recvfrom(100)
    with open("/tmp/heard", "w") as file:
        file.write(sender[0])


def keep_opening():
    while True:
        open(OPENED).close()
        time.sleep(0.02)


for work in (lambda: serve(nameless), lambda: serve(loopback), keep_opening, hear, lambda: time.sleep(100000)):
    if os.fork() == 0:
        os.setsid()
        libc.prctl(15, COMM.encode(), 0, 0, 0)
        nothing = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        try:
            work()
        finally:
            os._exit(0)

report(True, json.dumps({
    "n_file": FILE, "n_shared": SHARED, "n_comm": COMM, "n_key": KEY, "n_queue": QUEUE,
    "n_locked": LOCKED, "n_opened": OPENED, "n_abstract": name, "n_port": loopback.getsockname()[1],
    "n_length": len(SECRET),
}))
