"""Runs code in a Python that has no ipykernel: standard library only.

Reads one JSON request a line from standard input and writes what Jupyter
would publish, one message a line, to what standard output was at its start:

    {"id": "...", "code": "...", "silent": false}
    {"msg_type": "stream", "parent": "...", "content": {...}}

Names stay from one request to the next. SIGINT raises KeyboardInterrupt in
the code that runs.
"""

import ast
import io
import json
import linecache
import os
import signal
import sys
import threading
import traceback

_OUTPUT_BYTES = 65536


class _Runner:
    def __init__(self):
        self.requests = os.fdopen(os.dup(0), "rb")
        self.answers = os.dup(1)
        self.lock = threading.Lock()
        self.parent = ""
        self.count = 0
        self.names = {"__name__": "__main__", "__builtins__": __builtins__}
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        self.streams = [_Stream(self, 1, "stdout"), _Stream(self, 2, "stderr")]

    def tell(self, kind, content):
        line = json.dumps({"msg_type": kind, "parent": self.parent, "content": content})
        data = memoryview(line.encode() + b"\n")
        with self.lock:
            while data:
                data = data[os.write(self.answers, data) :]

    def serve(self):
        for line in self.requests:
            request = json.loads(line)
            self.parent = request["id"]
            status = "ok"
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                status = self.run(request["code"], request.get("silent", False))
            except KeyboardInterrupt:
                # Between the code's own end and here.
                pass
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            for stream in self.streams:
                stream.settle()
            self.tell("execute_reply", {"status": status, "execution_count": self.count})
            self.tell("status", {"execution_state": "idle"})

    def run(self, code, silent):
        if not silent:
            self.count += 1
            self.tell("execute_input", {"execution_count": self.count})
        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec"), self.names)
            if last is not None:
                value = eval(compile(last, name, "eval"), self.names)
                if value is not None and not silent:
                    self.names["_"] = value
                    self.flush()
                    self.tell("execute_result", {"data": _bundle(value)})
        except SystemExit:
            return "ok"
        except BaseException as error:
            if not silent:
                self.flush()
                self.tell("error", _error(error))
            return "error"
        finally:
            self.flush()
        return "ok"

    def flush(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        for stream in self.streams:
            stream.settle()


class _Stream:
    """Takes the place of a descriptor, so that programs it starts are heard as well."""

    def __init__(self, runner, number, name):
        self.runner, self.number, self.name = runner, number, name
        self.source, target = os.pipe()
        os.dup2(target, number)
        os.close(target)
        # Says that everything before it was read.
        self.mark, self.marked = os.urandom(16), threading.Event()
        threading.Thread(target=self.pump, daemon=True).start()
        setattr(sys, name, io.TextIOWrapper(open(number, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True))

    def settle(self):
        try:
            self.marked.clear()
            os.write(self.number, self.mark)
            self.marked.wait(1)
        except OSError:
            pass

    def pump(self):
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            data = os.read(self.source, _OUTPUT_BYTES)
            if not data:
                return
            seen = self.mark in data
            text = decoder.decode(data.replace(self.mark, b""))
            if text:
                self.runner.tell("stream", {"name": self.name, "text": text})
            if seen:
                self.marked.set()


def _bundle(value):
    bundle = {"text/plain": repr(value)}
    for kind, method in (
        ("text/html", "_repr_html_"),
        ("text/markdown", "_repr_markdown_"),
        ("image/svg+xml", "_repr_svg_"),
        ("text/latex", "_repr_latex_"),
    ):
        try:
            made = getattr(value, method)()
        except Exception:
            continue
        if isinstance(made, str):
            bundle[kind] = made
    if isinstance(value, (dict, list)):
        try:
            bundle["application/json"] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            pass
    return bundle


def _error(error):
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    lines = traceback.format_exception(type(error), error, own)
    try:
        value = str(error)
    except Exception:
        value = "<unprintable>"
    return {
        "ename": type(error).__name__,
        "evalue": value,
        "traceback": "".join(lines).splitlines(),
    }


if __name__ == "__main__":
    sys.path[0] = ""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Runner().serve()
