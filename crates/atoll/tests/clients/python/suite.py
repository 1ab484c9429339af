"""Cases for E2B's SDK, and what they share.

A case is a coroutine that gets a `Stand`. Both flavours of the SDK have the
same methods, which answer at once (`Sandbox`) or when awaited
(`AsyncSandbox`); `settle` makes the two one, so that each case is written
once. What only one flavour has is a case `only` for it.

Cases come in by `case`, and go out as one line of JSON each:
`{"name": …, "ok": …, "detail": …}`.
"""

import asyncio
import inspect
import json
import os
import sys
import threading
import time
import traceback

from packaging.version import Version

from e2b import AsyncSandbox, Sandbox
from e2b.connection_config import ConnectionConfig

URL = os.environ["GUEST_URL"]
TOKEN = os.environ["GUEST_TOKEN"]
SANDBOX_ID = os.environ["GUEST_SANDBOX_ID"]
TEMPLATE_ID = os.environ["GUEST_TEMPLATE_ID"]

# How a server that stands before guests knows which one is meant; a guest alone
# does not care.
ROUTE = {"E2b-Sandbox-Id": SANDBOX_ID, "E2b-Sandbox-Port": "49983"}

# The version a control plane would report for the guest; it opens every gate
# of the SDK.
ENVD_VERSION = "0.6.13"

HOME = "/home/user"

# What no case comes close to, whatever it waits for.
CASE_BOUND_SECONDS = 90 * int(os.environ.get("ATOLL_TEST_TIME_FACTOR", "1"))

# What no single answer takes.
BOUND_SECONDS = 20 * int(os.environ.get("ATOLL_TEST_TIME_FACTOR", "1"))

SYNC, ASYNC = "sync", "async"

_cases = []


def case(function=None, *, only=None):
    """Adds a case, named for its function."""

    def add(function):
        _cases.append((function, only))
        return function

    return add if function is None else add(function)


async def settle(answer):
    """What a method of either flavour answers."""
    return await answer if inspect.isawaitable(answer) else answer


def same(actual, expected):
    assert actual == expected, f"\n     got {actual!r}\nexpected {expected!r}"


async def raised(kind, call):
    """The exception of exactly this kind that `call` ends with."""
    try:
        answer = await settle(call())
    except Exception as error:
        assert type(error) is kind, f"expected {kind.__name__}, got {error!r}"
        return error
    raise AssertionError(f"expected {kind.__name__}, got the answer {answer!r}")


async def eventually(what, question):
    """Asks until the answer is true."""
    end = time.monotonic() + BOUND_SECONDS
    while True:
        answer = await settle(question())
        if answer:
            return answer
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


class Stand:
    """A sandbox handle of one flavour, and a place for the files of one case."""

    def __init__(self, flavour, name, token=TOKEN):
        self.is_async = flavour == ASYNC
        self.directory = f"{HOME}/{name}"
        config = ConnectionConfig(
            sandbox_url=URL,
            # What the SDK sets itself after `create`.
            extra_sandbox_headers={
                "E2b-Sandbox-Id": SANDBOX_ID,
                "E2b-Sandbox-Port": str(ConnectionConfig.envd_port),
                "X-Access-Token": token,
            },
        )
        sandbox = AsyncSandbox if self.is_async else Sandbox
        self.sandbox = sandbox(
            sandbox_id=SANDBOX_ID,
            sandbox_domain=None,
            envd_version=Version(ENVD_VERSION),
            envd_access_token=token,
            connection_config=config,
        )
        self.files = self.sandbox.files
        self.commands = self.sandbox.commands
        self.pty = self.sandbox.pty

    async def run(self, command, **options):
        return await settle(self.commands.run(command, **options))

    async def start(self, command, **options):
        return await settle(self.commands.run(command, background=True, **options))

    async def output(self, command, **options):
        """Standard output of a command that succeeds."""
        return (await self.run(command, **options)).stdout

    async def runs(self, pattern):
        """Whether a process with this in its command line runs in the sandbox."""
        # The brackets keep `pgrep` from finding the shell it runs in.
        found = await self.run(f"pgrep -f '[{pattern[0]}]{pattern[1:]}' || true")
        return found.stdout != ""


def _attempt(function, flavour):
    """Runs one case in a thread of its own: a call of the SDK that hangs ends with us."""
    outcome = {"detail": f"did not end within {CASE_BOUND_SECONDS} s"}

    def run():
        try:
            asyncio.run(_with_stand(function, flavour))
            outcome.update(detail=None)
        except BaseException:
            outcome.update(detail=traceback.format_exc())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(CASE_BOUND_SECONDS)
    return outcome["detail"]


async def _with_stand(function, flavour):
    # The handle belongs to the event loop of its case.
    await function(Stand(flavour, function.__name__))


def run(flavour, wanted):
    """Runs the cases of a flavour whose names contain `wanted`, and reports each."""
    for function, only in _cases:
        name = function.__name__
        if (only or flavour) != flavour or wanted not in name:
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        detail = _attempt(function, flavour)
        line = {"name": name, "ok": detail is None, "detail": detail or ""}
        print(json.dumps(line), flush=True)
    # Threads of cases that hang are left behind.
    os._exit(0)
