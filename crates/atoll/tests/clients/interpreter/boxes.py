"""A sandbox, reached through the synchronous or the asynchronous SDK, and what cases share."""

import asyncio
import contextlib
import functools
import inspect
import threading

import e2b_code_interpreter
from e2b_code_interpreter import AsyncSandbox, Sandbox

# No cell takes longer than that, however busy the machine is.
BOUND_S = 240

ENVIRONMENT = {"GLOBAL_ONE": "one of the sandbox", "GLOBAL_TWO": "zwei \u00fc 'quoted' \"twice\" $HOME"}


class Waiting:
    """An asynchronous object whose methods wait for their results."""

    def __init__(self, loop, wrapped):
        self._loop = loop
        self._wrapped = wrapped

    def __getattr__(self, name):
        value = getattr(self._wrapped, name)
        if name in ("files", "commands"):
            return Waiting(self._loop, value)
        return functools.partial(self._call, value) if callable(value) else value

    def _call(self, method, *arguments, **options):
        # Some methods only turn out to be asynchronous when they are called.
        result = method(*arguments, **options)
        return self._wait(result) if inspect.isawaitable(result) else result

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(BOUND_S + 60)


@contextlib.contextmanager
def open_box(way, template):
    options = {"template": template, "timeout": 3600, "envs": ENVIRONMENT}
    if way == "sync":
        with contextlib.closing(_Ending(_create(Sandbox)(**options))) as ending:
            yield ending.sandbox
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        create = AsyncSandbox.create(**options)
        sandbox = asyncio.run_coroutine_threadsafe(create, loop).result(120)
        with contextlib.closing(_Ending(Waiting(loop, sandbox))) as ending:
            yield ending.sandbox
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _create(kind):
    # The first version makes sandboxes by its constructor.
    return getattr(kind, "create", kind)


class _Ending:
    def __init__(self, sandbox):
        self.sandbox = sandbox

    def close(self):
        self.sandbox.kill()


def case_list():
    """A list of cases, and what puts a function on it."""
    cases = []

    def case(work=None, least="tiny"):
        if work is None:
            return lambda work: case(work, least)
        cases.append((work, least))
        return work

    return cases, case


def same(one, other):
    assert one == other, f"\n  is        {one!r}\n  should be {other!r}"


def run(box, code, **options):
    """Runs a cell that must not fail."""
    execution = box.run_code(code, timeout=BOUND_S, **options)
    assert execution.error is None, f"{execution.error.name}: {execution.error.value}\n{execution.error.traceback}"
    return execution


def fail(box, code, **options):
    """Runs a cell that must fail, and gives its error."""
    execution = box.run_code(code, timeout=BOUND_S, **options)
    assert execution.error is not None, f"no error, but {execution}"
    return execution.error


def raised(error, work):
    try:
        work()
    except error as caught:
        return caught
    raise AssertionError(f"{error.__name__} was not raised")


def printed(execution):
    return "".join(execution.logs.stdout)


def complained(execution):
    return "".join(execution.logs.stderr)


# What versions have in common, by one name.
NotFound = e2b_code_interpreter.NotFoundException
TooLate = e2b_code_interpreter.TimeoutException
InvalidArgument = e2b_code_interpreter.InvalidArgumentException
