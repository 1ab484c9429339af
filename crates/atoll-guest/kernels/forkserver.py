"""The parent of Python kernels: everything a kernel needs is imported once,
and each kernel is a fork of this process.

It is started with a socket as its standard input and speaks JSON, a line each:

    asked  {"fork": 1, "mark": 7, "connection_file": "...", "arguments": [...],
            "cwd": "...", "env": {...}}
    told   {"ready": true}
           {"forked": 1, "pid": 42}      {"refused": 1, "why": "..."}
           {"ended": 42, "status": 9}    as waitpid tells it

It has one thread for as long as it lives, so that forks are sound. It ends
with the socket.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types

# A kernel without a debugger: nobody could reach it, and importing it takes
# longer than all the rest.
_ABSENT = "debugpy"
# Longest line that is taken.
_LINE_BYTES_MAX = 4 * 1024 * 1024
# How much a kernel that could not start says about it.
_FAILURE_CHARS_MAX = 4000
# The module of `streams.py`, which lies beside the hooks.
_STREAMS = "atoll_streams"
# A cell that imports as many modules as that leaves much that stays.
_MODULES_MANY = 50
# New objects after which garbage is looked for. A figure has more than ten
# thousand of them, which Python by itself would look through 15 times.
_YOUNG_MAX = 5000
# How long nobody must have asked for anything until time is taken for it.
_IDLE_S = 0.1
# Shows figures in the answer; a backend that shows nothing gives way to it.
_FIGURES = "module://matplotlib_inline.backend_inline"


# Who is ended first when memory runs out: what a cell forked, then its kernel,
# then this process, with which all kernels would go. Commands are like this
# process; nobody may come later than he started.
_WEIGHT_OF_KERNELS = 600
_WEIGHT_OF_THEIR_FORKS = 800


def _weigh(weight):
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(weight))
    except OSError:
        pass


# The limit of locks on files, which Linux has not looked at since 2.4.
_RLIMIT_LOCKS = 10


def _put_on(mark):
    """Whatever a kernel starts has its limits, wherever it goes: by this one it
    is found when there is too much of it."""
    try:
        import resource

        resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))
    except (ImportError, OSError, ValueError):
        pass


def _preload(names):
    sys.modules[_ABSENT] = None
    try:
        import ipykernel.debugger  # noqa: F401  notes that there is none
        import ipykernel.ipkernel  # noqa: F401
        import ipykernel.kernelapp
        import ipykernel.zmqshell  # noqa: F401
    finally:
        del sys.modules[_ABSENT]
    # What each kernel would otherwise import at its start or in its first cell.
    for name in (
        "IPython.core.completerlib",
        "IPython.core.debugger",
        "IPython.core.logger",
        "IPython.core.magics.osm",
        "IPython.core.oinspect",
        "IPython.extensions.storemagic",
        "cProfile",
        "faulthandler",
        "matplotlib_inline.config",
        "pdb",
        "pygments.formatters.terminal256",
        "random",
        "stack_data",
        "tornado.platform.asyncio",
        "unicodedata",
        *names,
    ):
        try:
            importlib.import_module(name)
        except Exception:
            pass
    return ipykernel.kernelapp


def _hooks(path):
    """The code of the hooks, or nothing: they must never keep a kernel from starting."""
    try:
        with open(path, encoding="utf-8") as file:
            return compile(file.read(), path, "exec")
    except Exception:
        return None


def _hurry(path):
    """Makes streams of kernels quicker. They work without."""
    try:
        with open(path, encoding="utf-8") as file:
            code = compile(file.read(), path, "exec")
        module = types.ModuleType(_STREAMS)
        exec(code, module.__dict__)
        module.install()
        sys.modules[_STREAMS] = module
    except Exception:
        pass


def _install(hooks):
    if hooks is None:
        return
    module = types.ModuleType("atoll_hooks")
    module.__file__ = hooks.co_filename
    sys.modules[module.__name__] = module
    try:
        exec(hooks, module.__dict__)
    except Exception:
        pass


def _reseed():
    import random

    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        try:
            numpy.random.seed()
        except Exception:
            pass


def _become_kernel(kernelapp, order, hooks):
    """Turns this fork into a kernel; returns only when the kernel has ended."""
    os.setsid()
    _weigh(_WEIGHT_OF_KERNELS)
    _put_on(order["mark"])
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    if os.environ.get("MPLBACKEND", "agg").lower() == "agg":
        os.environ["MPLBACKEND"] = _FIGURES
    sys.argv = ["ipykernel_launcher", *order["arguments"]]
    # As `python -m ipykernel_launcher` has it, without the directory itself.
    if "" not in sys.path:
        sys.path.insert(0, "")
    _reseed()

    import zmq
    from traitlets.config import Config

    # Who prints faster than anybody reads waits; nothing is dropped.
    context = zmq.Context.instance()
    context.setsockopt(zmq.XPUB_NODROP, 1)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.PlainTextFormatter.max_seq_length = 0
    config.IPKernelApp.no_stdout = False
    if _STREAMS in sys.modules:
        # It sleeps for output that may be late; there is none any more.
        config.IPythonKernel._execute_sleep = 0.0
    application = kernelapp.IPKernelApp.instance(config=config)
    application.initialize(order["arguments"])
    _install(hooks)
    _end_copies(application.shell)
    _settle_imports(application.shell)
    gc.set_threshold(_YOUNG_MAX)
    gc.enable()
    application.start()


def _end_copies(shell):
    """Lets forks that a cell makes end with the cell, as forks of a program end
    with it: each would otherwise go on as a second kernel on the same sockets."""
    kernel = os.getpid()
    show = shell._showtraceback

    def _show_or_end(kind, value, lines):
        if os.getpid() == kernel:
            return show(kind, value, lines)
        code = 1
        if isinstance(value, SystemExit):
            code = value.code if isinstance(value.code, int) else bool(value.code)
        elif select.select([], [2], [], 0)[1]:
            text = "\n".join([*lines, ""])[-_FAILURE_CHARS_MAX:]
            os.write(2, text.encode(errors="replace"))
        os._exit(code & 0xFF)

    def _end(*_):
        if os.getpid() != kernel:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(0)

    os.register_at_fork(after_in_child=lambda: _weigh(_WEIGHT_OF_THEIR_FORKS))
    shell._showtraceback = _show_or_end
    shell.events.register("post_execute", _end)


def _settle_imports(shell):
    """Looks at what large imports left once, while nobody waits, instead of again
    and again in the middle of cells. What a cell leaves is collected as ever."""
    import asyncio

    known, planned = len(sys.modules), None

    def settle():
        nonlocal planned
        planned = None
        gc.collect()

    def begin(*_):
        if planned is not None:
            planned.cancel()

    def end(*_):
        nonlocal known, planned
        if planned is None and len(sys.modules) - known < _MODULES_MANY:
            return
        known = len(sys.modules)
        try:
            planned = asyncio.get_running_loop().call_later(_IDLE_S, settle)
        except RuntimeError:
            planned = None

    shell.events.register("pre_execute", begin)
    shell.events.register("post_execute", end)


class _Parent:
    def __init__(self):
        self.control = socket.socket(fileno=os.dup(0))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.close(nowhere)
        self.received = b""
        self.woken, wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(wake, False)
        self.wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def tell(self, **what):
        self.control.sendall(json.dumps(what).encode() + b"\n")

    def serve(self, kernelapp, hooks):
        while True:
            readable, _, _ = select.select([self.control, self.woken], [], [])
            if self.woken in readable:
                os.read(self.woken, 4096)
            self.bury()
            if self.control in readable:
                piece = self.control.recv(65536)
                if not piece or len(self.received) > _LINE_BYTES_MAX:
                    return
                self.received += piece
                while b"\n" in self.received:
                    line, self.received = self.received.split(b"\n", 1)
                    self.fork(kernelapp, json.loads(line), hooks)

    def bury(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.tell(ended=pid, status=status)

    def fork(self, kernelapp, order, hooks):
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(refused=order["fork"], why=str(error))
            return
        if pid:
            self.tell(forked=order["fork"], pid=pid)
            return
        code = 1
        try:
            self.control.close()
            os.close(self.woken)
            os.close(self.wake)
            _become_kernel(kernelapp, order, hooks)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            import traceback

            try:
                with open(order["connection_file"] + ".failure", "w") as file:
                    file.write(traceback.format_exc()[-_FAILURE_CHARS_MAX:])
            except OSError:
                pass
        finally:
            os._exit(code & 0xFF)


def main(hooks_path, preload):
    parent = _Parent()
    try:
        kernelapp = _preload([name for name in preload.split(",") if name])
    except BaseException as error:
        parent.tell(failed=f"{type(error).__name__}: {error}"[:_FAILURE_CHARS_MAX])
        return
    hooks = _hooks(hooks_path)
    _hurry(os.path.join(os.path.dirname(hooks_path), "streams.py"))
    # What is there now stays shared with all forks: collecting would write to it.
    gc.collect()
    gc.disable()
    gc.freeze()
    parent.tell(ready=True)
    parent.serve(kernelapp, hooks)


if __name__ == "__main__":
    # Nothing is imported from where this file is.
    sys.path.pop(0)
    main(*sys.argv[1:3])
