# 16 MiB of lines into everything that could be a log of the host, and thousands of requests that make no sense.
import socket
LINE, SIZE = b"a line for the log\n" * 3000, 16 << 20
written = {}
for path in TARGET["logs"].split():
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        while written.get(path, 0) < SIZE:
            written[path] = written.get(path, 0) + os.write(descriptor, LINE)
    except OSError as error:
        written.setdefault(path, errno.errorcode[error.errno])
asked = 0
if TARGET["tier"] != "none":
    for number in range(1000):
        try:
            with socket.create_connection(("127.0.0.1", (49983, 49982)[number % 2]), timeout=1) as stream:
                stream.sendall(b"\0" + os.urandom(100) + b"\r\n\r\n")
                asked += 1
        except OSError:
            pass
report(False, f"written {written}, {asked} requests")
