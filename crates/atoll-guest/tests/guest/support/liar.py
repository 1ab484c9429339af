"""A kernel that lies: speaks ZeroMQ's wire protocol by hand, and does to the
guest whatever the code that it is asked to run says."""

import json
import os
import signal
import socket
import struct
import sys
import threading

with open(sys.argv[1]) as file:
    connection = json.load(file)
published = []


def exactly(stream, length):
    data = b""
    while len(data) < length:
        piece = stream.recv(length - len(data))
        if not piece:
            # One that is hung up on lives on.
            threading.Event().wait()
        data += piece
    return data


def greet(stream, kind):
    stream.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL" + bytes(16) + bytes(32))
    exactly(stream, 64)
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    stream.sendall(bytes([4, len(ready)]) + ready)


def frame(data, more):
    return bytes([2 | more]) + struct.pack(">Q", len(data)) + data


def frames(stream):
    parts = []
    while True:
        flags = exactly(stream, 1)[0]
        length = struct.unpack(">Q", exactly(stream, 8))[0] if flags & 2 else exactly(stream, 1)[0]
        data = exactly(stream, length)
        if not flags & 4:
            parts.append(data)
            if not flags & 1:
                return parts


def say(stream, kind, parent, content, prefix=()):
    parts = [*prefix, b"<IDS|MSG>", b"sig", json.dumps({"msg_type": kind}).encode()]
    parts += [json.dumps(parent).encode(), b"{}", content if isinstance(content, bytes) else json.dumps(content).encode()]
    stream.sendall(b"".join(frame(part, index + 1 < len(parts)) for index, part in enumerate(parts)))


def publish(kind, parent, content):
    say(published[0], kind, parent, content, (b"topic",))


def lie(code, parent, shell):
    if code == "promise":
        published[0].sendall(b"\x03" + struct.pack(">Q", 2**62) + b"a little")
    elif code == "garbage":
        published[0].sendall(os.urandom(100000))
    elif code == "nonsense":
        for kind in ("stream", "execute_result", "error", "execute_input", "status", "x"):
            for content in (b"", b"\xff\xfe", b"[]", b"{}", b'{"data": {"text/plain": {}}}', b"1" * 5000):
                publish(kind, parent, content)
    elif code == "frames":
        published[0].sendall(b"\x01\x01x" * 1000000 + b"\x00\x00")
    elif code == "strangers":
        for _ in range(1000):
            publish("stream", {"msg_id": "somebody else"}, {"name": "stdout", "text": "not yours"})
    elif code == "lines":
        publish("execute_result", parent, b'{"data": {"text/plain": "a",\n\n"application/json": {"b":\n 1}}}')
    elif code == "deep":
        publish("execute_result", parent, b'{"data": {"application/json": ' + b"[" * 100000 + b"]" * 100000 + b"}}")
    elif code == "silence":
        return
    elif code == "hang up":
        published[0].shutdown(socket.SHUT_RDWR)
        return
    elif code == "no idle":
        say(shell, "execute_reply", parent, {"status": "ok"})
        return
    elif code == "no answer":
        publish("status", parent, {"execution_state": "idle"})
        return
    elif code == "twice":
        for _ in range(3):
            say(shell, "execute_reply", parent, {"status": "ok"})
    publish("stream", parent, {"name": "stdout", "text": "done"})
    say(shell, "execute_reply", parent, {"status": "ok"})
    publish("status", parent, {"execution_state": "idle"})


def shell(stream):
    greet(stream, b"ROUTER")
    while True:
        parts = frames(stream)
        header, content = json.loads(parts[2]), json.loads(parts[5])
        parent = {"msg_id": header["msg_id"]}
        if header["msg_type"] == "kernel_info_request":
            publish("status", parent, {"execution_state": "busy"})
            say(stream, "kernel_info_reply", parent, {})
        elif header["msg_type"] == "execute_request":
            lie(content["code"], parent, stream)


def iopub(stream):
    greet(stream, b"PUB")
    published.append(stream)
    while True:
        frames(stream)


def control(stream):
    greet(stream, b"ROUTER")
    while True:
        frames(stream)


def listen(port, serve):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{connection['ip']}-{port}")
    listener.listen()
    threading.Thread(target=lambda: serve(listener.accept()[0]), daemon=True).start()


signal.signal(signal.SIGINT, signal.SIG_IGN)
listen(connection["iopub_port"], iopub)
listen(connection["shell_port"], shell)
listen(connection["control_port"], control)
threading.Event().wait()
